"""What every test may rely on: Ctrl-C, and a home directory in which nothing lies."""

import atexit
import os
import shutil
import signal
import tempfile

# Caches and settings of whoever runs the tests change no result, and the tests leave nothing behind in them.
_HOME = tempfile.mkdtemp(prefix="rollonce-tests-home-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
for name in [n for n in os.environ if n.startswith(("XDG_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TORCH_HOME"))]:
    del os.environ[name]
os.environ |= {"HOME": _HOME, "HF_HUB_OFFLINE": "1"}

# A shell's background jobs begin with Ctrl-C ignored, and so would every process that a test starts and then
# interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
