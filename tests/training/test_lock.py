"""Who may write to a run's directory: one process of a computer, and one computer of those that see it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rollonce.errors import InputError
from rollonce.training import files
from rollonce.training.files import lock_run_directory


def test_another_computer_is_believed_dead_after_a_minute(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    lock.write_text("node7 another-boot")
    with pytest.raises(InputError, match="the computer 'node7' is writing to this run"), lock_run_directory(tmp_path):
        pass
    assert lock.read_text() == "node7 another-boot"  # nothing was taken from it
    silent = time.time() - files.LEASE_SECONDS - 1
    os.utime(lock, (silent, silent))
    with lock_run_directory(tmp_path):
        assert lock.read_text() == files.identify_computer()
    assert lock.read_text() == ""  # free for any computer at once


def test_the_same_computer_goes_on_at_once_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(files.identify_computer())
    with lock_run_directory(tmp_path):
        pass


def test_a_lock_is_renewed_and_whoever_is_patient_gets_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "LEASE_SECONDS", 1.2)
    lock = tmp_path / ".lock"
    with lock_run_directory(tmp_path):
        before = lock.stat().st_mtime_ns
        while lock.stat().st_mtime_ns == before:  # renewed every sixth of the time
            time.sleep(0.05)
    lock.write_text("node7 another-boot")
    with lock_run_directory(tmp_path, patience=60):  # it shows no sign of life any more
        assert lock.read_text() == files.identify_computer()
