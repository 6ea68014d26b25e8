"""The comparison of all arms on GSM8K on a rented GPU, through Modal.

    pip install modal && modal setup
    modal run examples/modal_gsm8k.py --seeds "0 1 2"
    modal volume get rollonce gsm8k ./out/gsm8k           # the page, the curves, the checkpoints

**Not run on Modal**: written from its documentation, and here only imported and its functions called on this machine
(tests/integrations/test_examples.py). A run that is cut off (a time limit, preemption) goes on where it was when it is
started again: `rollonce compare` is resumable, and the volume keeps what it wrote.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

try:
    import modal
except ModuleNotFoundError:  # the functions below are plain Python
    modal = None

ROOT = Path(__file__).resolve().parents[1]
SPEC, GPU, HOURS = "specs/gsm8k_all_arms.toml", "H100", 20
THERE, KEPT = "/rollonce", "/kept"  # in the container: this repository, and the volume


def install_command(root: str) -> list[str]:
    """How rollonce is installed from its source, with what training needs and the tested versions."""
    return [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--constraint",
        f"{root}/constraints.txt",
        f"{root}[train]",
        "datasets",
    ]


def compare_command(spec: str, out: str, seeds: list[int]) -> list[str]:
    """``rollonce compare`` of the specification's arms with these seeds (its own, if none are given)."""
    chosen = ["--seeds", *map(str, seeds)] if seeds else []
    return [sys.executable, "-m", "rollonce.cli", "compare", spec, "--out", out, "--processes", "1", *chosen]


def run_comparison(spec: str, out: str, seeds: list[int], root: str = str(ROOT)) -> int:
    """Run it where this is called, in the repository; the exit code."""
    return subprocess.run(compare_command(spec, out, seeds), cwd=root, check=False).returncode


if modal is not None:
    app = modal.App("rollonce-gsm8k")
    volume = modal.Volume.from_name("rollonce", create_if_missing=True)
    image = (
        modal.Image.debian_slim(python_version="3.11")
        .add_local_dir(str(ROOT), THERE, copy=True, ignore=[".git", ".venv", ".venv-tinker", "out", "runs"])
        .run_commands(" ".join(["pip", *install_command(THERE)[3:]]).replace("[train]", "'[train]'"))
    )

    @app.function(image=image, gpu=GPU, timeout=HOURS * 3600, volumes={KEPT: volume})
    def remote(seeds: list[int]) -> int:
        """On the rented machine."""
        try:
            return run_comparison(SPEC, f"{KEPT}/gsm8k", seeds, THERE)
        finally:
            volume.commit()

    @app.local_entrypoint()
    def main(seeds: str = "") -> None:
        """Start it, and wait."""
        sys.exit(remote.remote([int(s) for s in seeds.split()]))
