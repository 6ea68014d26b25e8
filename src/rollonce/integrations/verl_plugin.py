"""What verl imports by itself, once a process (entry point ``verl.plugins``). It logs a failure at debug level only, so
this one warns."""

from __future__ import annotations

import warnings

from rollonce.integrations.verl import register

try:
    register()
except Exception as e:
    warnings.warn(f"rollonce could not register its estimators with verl: {type(e).__name__}: {e}", stacklevel=1)
