"""The tinker-cookbook adapter on a stand-in of the cookbook's loop; `tests/tinker` runs it on the real one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cookbook_standin as standin
import numpy as np
import pytest
from surprise import MeanSurprise

from rollonce.baselines import Batch, FlashReinforce, Grpo, LeaveOneOut, published_length_buckets, published_tfidf
from rollonce.errors import InputError
from rollonce.integrations import tinker_cookbook
from rollonce.integrations.tinker_cookbook import cookbook_baseline, import_patchable_cookbook

QUESTIONS = [
    "What is 1 + 1?",
    "What is 20 + 22?",
    "Add 3 apples to 4 apples",
    "Sum of 5 and 6 please",
    "What is 7 + 9?",
]


@pytest.fixture(autouse=True)
def cookbook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stand-in under the cookbook's name."""
    for name in ("tinker_cookbook", "tinker_cookbook.rl"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "tinker_cookbook.rl.train", standin)
    for log in (standin.SENT, standin.PRINTED, standin.STEPS, standin.CREATED):
        log.clear()
    return standin


def steps_of(n: int, seed: int = 0, size: int = 1) -> list[list[tuple[Any, Any]]]:
    """n steps of the five questions, rewards drawn by a seed."""
    rng = np.random.default_rng(seed)
    return [
        [(standin.ProblemBuilder(q), standin.group_of(q, rng.random(size).tolist())) for q in QUESTIONS]
        for _ in range(n)
    ]


def rewards_of(step: list[tuple[Any, Any]]) -> np.ndarray:
    return np.array([r for _, g in step for r in g.get_total_rewards()])


def log_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "rollonce" / "advantages.jsonl").read_text().splitlines()]


def run(directory: Path, *args: int, **settings: Any) -> list[dict[str, Any]]:
    return asyncio.run(standin.main(standin.Config(str(directory), **settings), *args))


def sent(step: int) -> np.ndarray:
    return np.array([a for g in standin.SENT[step] for a in g])


def test_at_group_size_one_stock_gives_zero_and_the_patch_r_minus_leave_one_out(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(1))
    r = rewards_of(standin.STEPS[0])
    run(tmp_path / "stock")
    (tmp_path / "stock").mkdir(exist_ok=True)
    assert (sent(0) == 0).all()
    with cookbook_baseline(LeaveOneOut()):
        run(tmp_path / "ours")
    # b_i = (sum of the others) / (n - 1)
    np.testing.assert_allclose(sent(1), r - (r.sum() - r) / 4, rtol=1e-6)


@pytest.fixture(autouse=True)
def directories(tmp_path: Path) -> None:
    for name in ("stock", "ours", "a", "b"):
        (tmp_path / name).mkdir()


def test_one_group_at_a_time_for_printing_changes_nothing_and_shows_the_real_numbers(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(2))
    with cookbook_baseline(LeaveOneOut(window=100)) as patched:
        run(tmp_path / "a")
        assert patched.steps == 2
        assert patched.hook is not None
        assert len(patched.hook.baseline.history) == 10  # two steps of five, not more for what was printed
    # print_group is asked for the first two groups before the step's own call
    assert [p[0] for p in standin.PRINTED[:2]] == pytest.approx(sent(0)[:2].tolist())


def test_history_reaches_the_next_step(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(2))
    first, second = map(rewards_of, standin.STEPS)
    with cookbook_baseline(LeaveOneOut(window=100)):
        run(tmp_path / "a")
    # The second step's leave-one-out mean is over its own four others and all five of the first.
    np.testing.assert_allclose(sent(1), second - (second.sum() - second + first.sum()) / 9, rtol=1e-6)


def test_the_log_holds_what_was_sent_and_beside_it_the_plain_mean(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(1))
    r = rewards_of(standin.STEPS[0])
    baseline = published_tfidf().fit(QUESTIONS)
    with cookbook_baseline(baseline):
        metrics = run(tmp_path / "a")
    (record,) = log_of(tmp_path / "a")
    assert record["step"] == 0
    assert record["prompts"] == QUESTIONS  # without example, role names and the suffix that all have in common
    np.testing.assert_allclose(record["rewards"], r)
    np.testing.assert_allclose(record["loo_means"], (r.sum() - r) / 4)
    np.testing.assert_allclose(record["baselines"], baseline.predict(Batch.of(QUESTIONS, r)).baseline_B)
    np.testing.assert_allclose(np.array(record["rewards"]) - record["baselines"], record["advantages"])
    np.testing.assert_allclose(sent(0), record["advantages"], rtol=1e-6)
    assert record["self_weight_max"] == 0.0
    assert record["mean_abs_baseline_minus_loo"] == pytest.approx(
        np.abs(np.subtract(record["baselines"], record["loo_means"])).mean()
    )
    assert metrics[0]["rollonce/reward"] == pytest.approx(r.mean())


def test_the_own_reward_s_weight_is_read_from_the_baseline_not_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.STEPS.extend(steps_of(1))

    class Leaky(LeaveOneOut):
        def weights(self, batch: Batch, history: Any = None) -> Any:
            return np.full((len(batch), len(batch)), 1 / len(batch))

    leaky = Leaky.__new__(Leaky)
    leaky.__dict__.update(LeaveOneOut().__dict__)
    with cookbook_baseline(leaky):
        run(tmp_path / "a")
    assert log_of(tmp_path / "a")[0]["self_weight_max"] == pytest.approx(1 / 5)


def test_rewards_are_steps_and_group_rewards_together(tmp_path: Path) -> None:
    standin.STEPS.append(
        [(standin.ProblemBuilder(q), standin.group_of(q, [0.25], [float(i)])) for i, q in enumerate(QUESTIONS)]
    )
    with cookbook_baseline(LeaveOneOut()):
        run(tmp_path / "a")
    assert log_of(tmp_path / "a")[0]["rewards"] == [0.25, 1.25, 2.25, 3.25, 4.25]


def test_groups_of_several_reproduce_the_stock_advantages_with_the_group_mean(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(1, size=8))
    run(tmp_path / "stock")
    with cookbook_baseline(Grpo()):
        run(tmp_path / "ours")
    np.testing.assert_allclose(sent(1), sent(0), atol=1e-6)


def test_two_groups_of_one_prompt_stay_two_groups(tmp_path: Path) -> None:
    q = QUESTIONS[0]
    standin.STEPS.append([(standin.ProblemBuilder(q), standin.group_of(q, r)) for r in ([1.0, 0.0], [1.0, 1.0])])
    with cookbook_baseline(Grpo()):
        run(tmp_path / "a")
    assert sent(0).tolist() == [0.5, -0.5, 0.0, 0.0]


def test_a_baseline_that_needs_groups_is_refused_at_group_size_one(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(1))
    with cookbook_baseline(Grpo()), pytest.raises(InputError, match="several rollouts"):
        run(tmp_path / "a")


@pytest.mark.parametrize("settings", [{"remove_constant_reward_groups": True}, {"stream_minibatch_config": object()}])
def test_settings_that_spoil_it_are_refused_by_name_before_anything_runs(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    standin.STEPS.extend(steps_of(1))
    with cookbook_baseline(LeaveOneOut()), pytest.raises(InputError) as error:
        run(tmp_path / "a", **settings)
    assert next(iter(settings)) in str(error.value)
    assert ("set it to False" in str(error.value)) == ("remove_constant_reward_groups" in settings)
    assert not standin.CREATED
    # Also where somebody imported main before the patch: the loop itself refuses.
    original = standin.main
    with cookbook_baseline(LeaveOneOut()), pytest.raises(InputError):
        asyncio.run(original(standin.Config(str(tmp_path / "a"), **settings)))
    assert standin.CREATED
    assert not standin.SENT


def test_everything_is_put_back_also_after_an_error(tmp_path: Path) -> None:
    names = {n: getattr(standin, n) for n in tinker_cookbook.PATCHED}

    def fail() -> None:
        with cookbook_baseline(LeaveOneOut()):
            assert standin.compute_advantages is not names["compute_advantages"]
            with pytest.raises(InputError, match="already"), cookbook_baseline(LeaveOneOut()):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(getattr(standin, n) is f for n, f in names.items())
    with cookbook_baseline(LeaveOneOut()):
        pass


def test_a_resumed_run_goes_on_with_the_history_it_had(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(4))
    with cookbook_baseline(published_length_buckets()):
        run(tmp_path / "a")
    whole = [sent(i) for i in range(4)]
    with cookbook_baseline(published_length_buckets()):
        run(tmp_path / "b", 0, 3)  # dies after its third step, its last checkpoint at 2
    (tmp_path / "b" / "checkpoints.jsonl").write_text('{"name": "2", "batch": 2, "state_path": "tinker://x"}\n')
    with cookbook_baseline(published_length_buckets()) as patched:
        run(tmp_path / "b", 2)
        assert patched.hook is not None
        assert len(patched.hook.baseline.history) == 20
    np.testing.assert_array_equal(sent(-2), whole[2])
    np.testing.assert_array_equal(sent(-1), whole[3])
    assert [r["step"] for r in log_of(tmp_path / "b")] == [0, 1, 2, 3]  # the third step stands there once


def test_states_are_kept_from_the_last_checkpoint_on(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(4))
    (tmp_path / "a" / "checkpoints.jsonl").write_text('{"batch": 2, "state_path": "tinker://x"}\nhalf a li')
    with cookbook_baseline(published_length_buckets()):
        run(tmp_path / "a")
    states = sorted(p.name for p in (tmp_path / "a" / "rollonce").glob("state_*.json"))
    assert states == ["state_000002.json", "state_000003.json", "state_000004.json"]


def test_resuming_with_another_baseline_or_a_stock_run_is_refused(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(3))
    with cookbook_baseline(LeaveOneOut()):
        run(tmp_path / "a", 0, 2)
    with cookbook_baseline(FlashReinforce()), pytest.raises(InputError, match="another baseline"):
        run(tmp_path / "a", 2)
    with cookbook_baseline(LeaveOneOut()), pytest.raises(InputError, match="not made with a baseline"):
        run(tmp_path / "b", 2)
    (tmp_path / "a" / "rollonce" / "state_000002.json").unlink()
    with cookbook_baseline(LeaveOneOut()), pytest.raises(InputError, match="no history"):
        run(tmp_path / "a", 2)


def test_tasks_without_a_question_are_known_by_their_first_observation(tmp_path: Path) -> None:
    standin.STEPS.append([(standin.OtherBuilder(), standin.group_of(q, [float(i)])) for i, q in enumerate(QUESTIONS)])
    picture = standin.STEPS[0][0][1].trajectories_G[0].transitions[0].ob
    picture.chunks.append(standin.Picture())
    with cookbook_baseline(LeaveOneOut()):
        run(tmp_path / "a")
    assert log_of(tmp_path / "a")[0]["prompts"] == [
        standin.render(QUESTIONS[0]) + "[64 tokens]",
        *map(standin.render, QUESTIONS[1:]),
    ]
    with cookbook_baseline(LeaveOneOut(), prompts="question"), pytest.raises(InputError, match="observation"):
        run(tmp_path / "b")


def test_a_function_may_say_what_the_prompt_is(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(1))
    with cookbook_baseline(LeaveOneOut(), prompts=lambda group, builder, tokenizer: builder.question.upper()):
        run(tmp_path / "a")
    assert log_of(tmp_path / "a")[0]["prompts"] == [q.upper() for q in QUESTIONS]


def test_tasks_shifted_against_their_rollouts_are_noticed(tmp_path: Path) -> None:
    standin.STEPS.extend(steps_of(2))
    shifted = standin.STEPS[1]
    standin.STEPS[1] = [(shifted[(i + 1) % 5][0], g) for i, (_, g) in enumerate(shifted)]
    with cookbook_baseline(LeaveOneOut()), pytest.raises(InputError, match="do not belong together"):
        run(tmp_path / "a")
    with cookbook_baseline(LeaveOneOut()) as patched, pytest.raises(InputError, match="5 groups but 4 tasks"):
        patched.compute_step_advantages(0, [g for _, g in shifted], [b for b, _ in shifted[:4]], standin.Tokenizer())


def test_a_call_from_elsewhere_gets_a_sentence_not_wrong_numbers() -> None:
    with cookbook_baseline(LeaveOneOut()), pytest.raises(InputError, match="never saw"):
        standin.compute_advantages([standin.group_of("x", [1.0])])


def test_a_version_whose_loop_asks_elsewhere_is_noticed_after_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = standin.compute_advantages

    async def other(env_group_builders_P: Any, trajectory_groups_P: Any, tokenizer: Any, *_: Any, **__: Any) -> Any:
        return [a.tolist() for a in stock(trajectory_groups_P)], {}

    monkeypatch.setattr(standin, "prepare_minibatch", other)
    standin.STEPS.extend(steps_of(1))
    with cookbook_baseline(LeaveOneOut()), pytest.raises(InputError, match="without asking"):
        run(tmp_path / "a")


def test_a_version_without_the_names_is_refused_with_those_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def renamed(builders: Any, groups: Any, tokenizer: Any) -> None: ...

    monkeypatch.setattr(standin, "prepare_minibatch", renamed)
    with pytest.raises(
        InputError, match=r"prepare_minibatch has no parameter 'env_group_builders_P'.*0\.5\.8 and 0\.6\.1"
    ):
        import_patchable_cookbook()
    monkeypatch.delattr(standin, "prepare_minibatch")
    with pytest.raises(InputError, match="prepare_minibatch is not there"):
        import_patchable_cookbook()


def test_a_tuned_file_starts_without_its_old_history(tmp_path: Path) -> None:
    old = published_length_buckets()
    old.observe(Batch.of(QUESTIONS, [1.0] * 5))
    old.save(tmp_path / "baseline.json")
    standin.STEPS.extend(steps_of(1))
    r = rewards_of(standin.STEPS[0])
    with cookbook_baseline(tmp_path / "baseline.json"):
        run(tmp_path / "a")
    fresh = r - published_length_buckets().predict(Batch.of(QUESTIONS, r)).baseline_B
    np.testing.assert_allclose(sent(0), fresh, rtol=1e-6)
    assert len(old.history) == 5


def test_importing_the_adapter_loads_neither_torch_nor_the_cookbook() -> None:
    code = (
        "import sys, rollonce.integrations.tinker_cookbook; print(sorted({'torch', 'tinker', 'tinker_cookbook'} & "
        "set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_the_command_says_what_is_wrong_and_exits_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tinker_cookbook.main([str(tmp_path / "none.json"), "--", "x=1"]) == 2
    assert "no such file" in capsys.readouterr().err
    LeaveOneOut().save(tmp_path / "loo.json")
    assert tinker_cookbook.main([str(tmp_path / "loo.json"), "--", "no_such_recipe_module", "x=1"]) == 2
    assert "no_such_recipe_module" in capsys.readouterr().err


def test_the_command_runs_a_recipe_with_its_own_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_recipe.py").write_text(
        "import asyncio, sys\nfrom tinker_cookbook.rl.train import main\nimport cookbook_standin as s\n"
        "if __name__ == '__main__':\n    settings = dict(a.split('=') for a in sys.argv[1:])\n"
        "    asyncio.run(main(s.Config(settings['log_path'])))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    LeaveOneOut().save(tmp_path / "loo.json")
    standin.STEPS.extend(steps_of(1))
    before = list(sys.argv)
    assert tinker_cookbook.main([str(tmp_path / "loo.json"), "--", "my_recipe", f"log_path={tmp_path / 'a'}"]) == 0
    assert sys.argv == before
    r = rewards_of(standin.STEPS[0])
    np.testing.assert_allclose(sent(0), r - (r.sum() - r) / 4, rtol=1e-6)


def test_log_probabilities_of_all_turns_reach_the_baseline(tmp_path: Path) -> None:
    step = [
        (standin.ProblemBuilder(q), standin.group_of(q, [r], log_probs=p))
        for q, r, p in zip(QUESTIONS, [1.0, 0.0, 1.0, 0.0], [[-1.0, -2.0], [-4.0], [-8.0], None], strict=False)
    ]
    turn = step[1][1].trajectories_G[0].transitions[0]
    step[1][1].trajectories_G[0].transitions.append(standin.Transition(turn.ob, standin.Action([48], [-1.0]), 0.0))
    standin.STEPS.append(step)
    with cookbook_baseline(MeanSurprise()):
        run(tmp_path)
    # surprisals 3, 5 and 8, and one that nobody knows
    np.testing.assert_allclose(sent(0), [1 - 6.5, 0 - 5.5, 1 - 4.0, 0 - 16 / 3], rtol=1e-6)
