"""Runs over devices: which run gets which, what is free when one ends, and what cannot be. On CPUs: torch takes
``cpu:0`` and ``cpu:1`` for two devices, and both are this machine's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rollonce import cli  # noqa: E402
from rollonce.errors import InputError  # noqa: E402
from rollonce.training import compare as compare_module  # noqa: E402
from rollonce.training.compare import compare_in_processes  # noqa: E402
from rollonce.training.config import ExperimentConfig  # noqa: E402
from rollonce.training.devices import Place, assign_run_devices  # noqa: E402
from rollonce.training.sections import validate_section  # noqa: E402
from rollonce.training.worker import explain_run_failure  # noqa: E402


def config(arms: dict[str, Any] | None = None, **tables: Any) -> ExperimentConfig:
    data: dict[str, Any] = {
        "tasks": {"train": 60, "holdout": 4, "test": 4},
        "train": {"steps": 2, "rollouts": 4, "max_new_tokens": 8, "kl_every": 0, "shadow": []},
        "arms": arms or {"loo": {"baseline": "loo"}, "none": {"baseline": "none"}},
    }
    return validate_section(ExperimentConfig, {**data, **tables})


def gpus(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n)


def test_each_gpu_is_a_place_and_runs_see_it_as_their_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    spread, places = assign_run_devices(config(compare={"devices": "auto"}))
    assert spread.policy.device == "cuda"  # whichever it is: a killed run goes on on another
    assert places == [Place(f"cuda:{k}", {"CUDA_VISIBLE_DEVICES": str(k)}) for k in (0, 1)]
    # What a scheduler gave this process is what is counted in.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    _, places = assign_run_devices(config(compare={"devices": ["cuda:1", "cuda:1"], "processes": 1}))
    assert places == [Place("cuda:1", {"CUDA_VISIBLE_DEVICES": "6"})]


def test_without_devices_nothing_is_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    same, places = assign_run_devices(config(compare={"processes": 3}))
    assert same.policy.device == "cpu"
    assert places == [Place("", {})] * 3
    gpus(monkeypatch, 0)
    found, places = assign_run_devices(config(compare={"devices": "auto"}))
    assert (found.policy.device, len(places)) == ("cpu", os.cpu_count())


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"compare": {"devices": ["cuda:0", "cpu"]}}, "must be of one kind"),
        ({"compare": {"devices": ["cpu"], "processes": 2}}, "processes is 2, but compare.devices has 1"),
        ({"compare": {"devices": ["gpu"]}}, "compare.devices 'gpu' is none that torch knows"),
        ({"compare": {"devices": ["cuda:7"]}}, "compare.devices is 'cuda:7', but torch sees"),
        ({"compare": {"devices": []}}, "at least one"),
        ({"compare": {"devices": ["cpu"]}, "policy": {"device": "cpu"}}, "leave policy.device out"),
        ({"compare": {"devices": "auto"}, "policy": {"engine": "tinker", "source": "m"}}, "a service has its own"),
    ],
)
def test_devices_that_cannot_be(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        assign_run_devices(config(**tables))


def test_runs_wait_for_a_device_and_take_the_one_that_is_free(tmp_path: Path) -> None:
    """Four runs, two devices: each device has one run at a time, and both have some."""
    seen: list[dict[str, str]] = []

    def tell(progress: compare_module.Progress) -> None:
        seen.append({line.partition(" on ")[2].split()[0]: line.partition(" on ")[0] for line in progress.running})
        assert len(seen[-1]) == len(progress.running) <= 2  # no two on one device

    spread = config(compare={"devices": ["cpu:0", "cpu:1"], "seeds": [0, 1]})
    outcome = compare_in_processes(spread, tmp_path, tell)
    assert (outcome.done, outcome.errors) == (4, [])
    assert {device for running in seen for device in running} == {"cpu:0", "cpu:1"}
    assert {run for running in seen for run in running.values()} == {
        f"{a} seed {s}" for a in ("loo", "none") for s in (0, 1)
    }


def test_a_run_that_does_not_fit_is_named_and_its_device_goes_to_the_next(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'rollonce.training.worker' in ' '.join(sys.orig_argv):\n"
        "    import torch\n"
        "    from rollonce.training.learners import local\n"
        "    real = local.LocalLearner.__init__\n"
        "    def init(self, config, policy=None):\n"
        "        if config.arm.baseline == 'loo':\n"
        "            raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB.')\n"
        "        real(self, config, policy)\n"
        "    local.LocalLearner.__init__ = init\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    file = tmp_path / "two.toml"
    file.write_text(
        "[tasks]\ntrain = 60\nholdout = 4\ntest = 4\n"
        "[train]\nsteps = 1\nrollouts = 4\nmax_new_tokens = 8\nshadow = []\n"
        "[arms.loo]\nbaseline = 'loo'\n[arms.none]\nbaseline = 'none'\n"
    )
    assert cli.main(["compare", str(file), "--out", str(tmp_path / "out"), "--devices", "cpu:0"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "loo seed 0 on cpu:0: does not fit into the memory of its device; let fewer rows be computed" in said
    assert (tmp_path / "out/runs/none/seed0/result.json").exists()


def test_what_is_no_matter_of_memory_is_said_as_it_is() -> None:
    assert explain_run_failure(RuntimeError("mat1 and mat2 shapes")) == "RuntimeError: mat1 and mat2 shapes"
    assert "does not fit" in explain_run_failure(
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
    )
