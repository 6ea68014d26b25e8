"""``UNRESOLVED: pin ...``: resolved at run time to what is really installed, and recorded. Nothing is looked up in a
network.

A package is pinned by its version, the commit it was installed from where pip noted one, and a sha256 over the names
and bytes of its installed ``.py`` files. `rollonce.reference` is pinned by the sha256 of its file, and by the commit
that last changed it where it lies in a clean checkout.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import rollonce
from rollonce.experiments.derive import ExperimentSettings
from rollonce.experiments.files import compute_file_digest
from rollonce.experiments.loading import LoadedSpec
from rollonce.experiments.spec import UNRESOLVED


class Pins(NamedTuple):
    """``resolved``: path of the field -> what it is pinned to. ``open``: path -> why it could not be, or why what is
    installed is not what the specification pins."""

    resolved: dict[str, dict[str, Any]]
    open: dict[str, str]


def resolve_field_pins(loaded: LoadedSpec, settings: ExperimentSettings) -> Pins:
    """Pins of every unresolved field, and of the custom paths' revisions in any case."""
    revisions = {
        f"correctness_preflight.paths[{i}].{key}": getattr(path, key)
        for i, path in enumerate(loaded.spec.correctness_preflight.paths)
        for key in ("baseline_revision", "reference_revision")
    }
    resolved: dict[str, dict[str, Any]] = {}
    still_open: dict[str, str] = {}
    for path, text in (loaded.unresolved | revisions).items():
        pin = _find_installed_pin(path.rpartition(".")[2], settings)
        if isinstance(pin, str):
            still_open[path] = pin.format(text=text[:80])
        elif not text.startswith(UNRESOLVED) and not _names_this_pin(text, pin):
            there = ", ".join(f"{k} {pin[k]}" for k in ("version", "commit", "sha256") if k in pin)
            still_open[path] = (
                f"the specification pins {text!r}, and installed is {pin.get('package') or pin.get('file')} {there}. "
                "Install what is pinned (a version, a commit or a sha256, of seven digits at least)"
            )
        else:
            resolved[path] = pin
    return Pins(resolved, still_open)


def _find_installed_pin(field: str, settings: ExperimentSettings) -> dict[str, Any] | str:
    """What there is to pin a field to, or why there is nothing."""
    if field == "reference_revision":
        return make_reference_pin()
    if field != "baseline_revision":
        return "nothing is known to pin it to ({text}): write the value into the specification"
    if settings.engine == "cookbook":
        return make_package_pin("tinker-cookbook") or "tinker-cookbook is not installed: pip install 'rollonce[tinker]'"
    return make_own_package_pin() | {"note": "our own loop's group mean is this package's, compared with reference.py"}


def _names_this_pin(text: str, pin: dict[str, Any]) -> bool:
    """Whether a pin written by hand (``0.5.8``, ``package==0.5.8``, ``sha256:...``, a commit) is this one."""
    word = text.strip().removeprefix("sha256:").rpartition("==")[2].strip()
    if word == pin.get("version"):
        return True
    return len(word) >= 7 and any(str(pin.get(k, "")).startswith(word.lower()) for k in ("commit", "sha256"))


def make_package_pin(name: str) -> dict[str, Any] | None:
    """Version, commit if known, and hash over the installed files; None if it is not installed."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    files = sorted((str(f), Path(str(f.locate()))) for f in found.files or [] if str(f).endswith(".py"))
    pin = {"package": name, "version": found.version, "sha256": _compute_files_digest(files), "files": len(files)}
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id")
    return pin | ({"commit": commit} if commit else {})


def make_own_package_pin() -> dict[str, Any]:
    """This package's baselines: version, and hash over the ``.py`` files that a group mean goes through."""
    root = Path(rollonce.__file__).parent
    paths = [root / "rollouts.py", root / "component.py", *(root / "baselines").glob("*.py")]
    files = sorted((str(f.relative_to(root)), f) for f in paths)
    return {
        "package": "rollonce",
        "version": rollonce.__version__,
        "sha256": _compute_files_digest(files),
        "files": len(files),
    }


def make_reference_pin() -> dict[str, Any]:
    """``rollonce/reference.py``: its sha256, and the commit that last changed it, if it lies in a checkout and is
    unchanged since."""
    path = Path(rollonce.__file__).parent / "reference.py"
    pin: dict[str, Any] = {
        "file": "rollonce/reference.py",
        "version": rollonce.__version__,
        "sha256": compute_file_digest(path),
    }
    changed = _run_git_command(path, "status", "--porcelain", "--", path.name)
    commit = _run_git_command(path, "log", "-1", "--format=%H", "--", path.name)
    return pin | ({"commit": commit} if commit and changed == "" else {})


def _compute_files_digest(files: list[tuple[str, Path]]) -> str:
    total = hashlib.sha256()
    for name, path in files:
        total.update(f"{name}\0{compute_file_digest(path)}\n".encode())
    return total.hexdigest()


def _run_git_command(path: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=path.parent, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
