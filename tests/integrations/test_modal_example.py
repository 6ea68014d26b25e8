"""``examples/modal_gsm8k.py``: its functions on the embedded policy, through the code path that Modal would take, with
a container killed in the middle of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from modal_stand_in import load_example, read_records

ROOT = Path(__file__).parents[2]


def small_spec(folder: Path) -> Path:
    """The local twin in a minute: 8 rollouts per step, 3 steps, 24 items, a gate that any kernel passes."""
    spec = json.loads((ROOT / "specs" / "local_twin.spec.json").read_text())
    spec["batch_size"], spec["steps"], spec["eval"]["n_examples"] = 8, 3, 24
    for arm, group in zip(spec["arms"], (4, 1), strict=True):
        arm.update(group_size=group, groups_per_batch=8 // group, steps=3)
    for check in spec["activation_gate"]["checks"]:
        ends = {
            "offline_beff_ratio_tfidf_vs_loo_mean": {"min": 0.1},
            "pilot_mean_abs_gs1_minus_batchmean_baseline": {"min": 0.0},
            "executed_rollouts_per_step": {"min": 8, "max": 8},
            "executed_group_size_grpo": {"min": 4, "max": 4},
            "nonzero_advantage_fraction_gs1": {"min": 0.0},
        }
        check.update(ends.get(check["metric"], {}))
    spec["rollonce"].update(calibration_tasks=16, calibration_group_size=4, pilot_steps=1, pilot_eval_items=4)
    spec["rollonce"].update(max_tokens=32, train_tasks=64)
    path = folder / "small.spec.json"
    path.write_text(json.dumps(spec))
    return path


def test_a_preempted_run_goes_on_from_the_volume_to_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, spec = load_example(monkeypatch, tmp_path), small_spec(tmp_path)
    document = module.with_our_loop(json.loads(spec.read_text()), gpu=False)
    function, killed = module.on_gpu, []

    def preempt() -> bool:
        kept = tmp_path / "store" / "gpu-small"
        pointer = kept / "current"
        if killed or not pointer.is_file():
            return False
        stages = [r["stage"] for r in read_records(kept / pointer.read_text() / "run")]
        if "calibration" in stages:
            killed.append(stages)
        return bool(killed)

    function.preempt = preempt
    words = module.estimate(document, 3.0)
    code = module.start("gpu", document, str(spec), words, True, function.remote)
    said = capsys.readouterr().out
    assert code == 0, said
    assert killed
    assert function.containers == 2
    kept = tmp_path / "store" / "gpu-small"
    run = kept / (kept / "current").read_text() / "run"
    after = read_records(run)
    stages = [r["stage"] for r in after]
    assert stages[: len(killed[0])] == killed[0]
    assert stages[-1] == "decision"
    assert len(set(stages)) == len(stages)  # nothing was done twice
    assert (run / "report.html").is_file()
    # 20 minutes at $3 are $1; nine starts of ten minutes make it $5.50 at most.
    assert "$1.00 for the registered 20 minutes" in said
    assert "at most $5.50" in said


def test_nothing_starts_without_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_example(monkeypatch, tmp_path)
    with pytest.raises(SystemExit) as ended:
        module.app.entrypoints["gpu"]()
    assert ended.value.code == 0
    assert module.on_gpu.containers == 0
    said = capsys.readouterr().out
    assert "GS1 (TF-IDF kernel, G=1) vs GRPO (G=8)" in said
    assert "$7.90 for the registered 120 minutes" in said  # two hours at $3.95
    assert "give --yes" in said


def test_the_registered_document_is_changed_by_a_section_of_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollonce.experiments.derive import derive_settings
    from rollonce.experiments.loading import load_specification
    from rollonce.experiments.safeguards import find_safeguards_switched_off

    module = load_example(monkeypatch, tmp_path)
    registered = module.read_registered(module.SPEC)
    document = module.with_our_loop(registered)
    assert {k: v for k, v in document.items() if k != "rollonce"} == registered
    path = tmp_path / "x.spec.json"
    path.write_text(json.dumps(document))
    loaded = load_specification(path)
    settings = derive_settings(loaded.spec)
    assert (settings.engine, settings.max_tokens) == ("local", 512)
    assert "this run trains with our own loop (engine local)" in find_safeguards_switched_off(loaded, settings)[0]
    # On the service the file goes as it is, byte for byte but for its layout.
    assert registered == json.loads((ROOT / module.SPEC).read_text())


def test_bad_input_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_example(monkeypatch, tmp_path)
    document = json.loads(small_spec(tmp_path).read_text()) | {"steps": "many"}
    assert module.start("gpu", document, "bad.json", "", True, module.on_gpu.remote) == 2
    assert module.on_gpu.containers == 1


def test_the_service_gets_the_renderer_and_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_example(monkeypatch, tmp_path)
    called: list[Any] = []
    monkeypatch.setattr(module.on_service, "remote", lambda *args: called.append(args) or 0)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit):
        module.app.entrypoints["spindle"](renderer="role_colon", yes=True)
    ((document, name, options),) = called
    assert name == "spindle-gs1_vs_grpo_gsm8k"
    assert options == ("--renderer", "role_colon")
    assert document == module.read_registered(module.SPEC)
    assert module.on_service.options["secrets"][0].keys == ["TINKER_API_KEY", "TINKER_BASE_URL"]
    assert "at most $" in capsys.readouterr().out


def test_modals_own_package_takes_the_arguments(tmp_path: Path) -> None:
    """Only where it is installed (it is not among the test tools): imports the example with the real one."""
    pytest.importorskip("modal")
    code = "import runpy; m = runpy.run_path('examples/modal_gsm8k.py'); print(sorted(m['app'].registered_functions))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "on_gpu" in done.stdout
