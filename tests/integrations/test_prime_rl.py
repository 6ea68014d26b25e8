"""prime-rl: credit from past rollouts through its own hooks, its settings, its restart.

Against a stand-in built to 559b447; with prime-rl installed (run_real.sh) against its own algorithms, configuration and
train sink, on verifiers' own episodes. The trainer, the inference server and environment servers are not run.
"""

import asyncio
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_modules import module, without
from prime_rl_parts import REAL, PrimeRl, advantages_of
from surprise import MeanSurprise

from rollonce.baselines import KernelBaseline, LeaveOneOut, family_mean_baseline
from rollonce.errors import InputError
from rollonce.integrations import prime_rl

needs_prime_rl = pytest.mark.skipif(not REAL, reason="prime-rl is not installed: run_real.sh prime_rl has it")
LOO = LeaveOneOut()


@pytest.fixture
def trainer(monkeypatch, tmp_path):
    return PrimeRl(monkeypatch, tmp_path)


def built(trainer, config, source=0):
    """The algorithm of a training source, as `TrainEnvs` builds it."""
    return trainer.algo.build_algorithm(config.train.source[source].algo, None)


def score(algorithm, *episodes):
    asyncio.run(algorithm.finalize_group(list(episodes)))
    return [advantages_of(e)[1][0] if advantages_of(e)[1] else None for e in episodes]


def test_grpo_is_silent_at_one_rollout_per_task_and_the_baseline_is_not(trainer):
    config = trainer.config(batch_size=2)
    stock = built(trainer, config)
    assert score(stock, trainer.episode("a", 1.0)) == [0.0]
    histories = prime_rl.install(config, LOO)
    ours = built(trainer, config)
    assert score(ours, trainer.episode("a", 1.0)) == [1.0]  # nothing to go by: 0
    assert score(ours, trainer.episode("b", 0.0)) == [-1.0]  # the running mean is 1; then both join
    assert score(ours, trainer.episode("c", 1.0)) == [0.5]
    assert histories["math"].hook.rows_waiting == 1


def test_the_credit_lies_on_every_sampled_token_and_on_no_other(trainer):
    config = trainer.config()
    prime_rl.install(config, LOO)
    episode = trainer.episode("a", 1.0, log_probs=(-1.0, -2.0, -3.0))
    score(built(trainer, config), episode)
    assert advantages_of(episode) == [None, [1.0], None, [1.0, 1.0]]


def test_a_group_is_judged_before_any_of_it_joins(trainer):
    config = trainer.config({"name": "math", "group_size": 4}, batch_size=4)
    prime_rl.install(config, LOO)
    ours = built(trainer, config)
    failed, other = trainer.episode("a", 5.0, ok=False), trainer.episode("a", 5.0, trainable=False)
    got = score(ours, trainer.episode("a", 1.0), failed, other, trainer.episode("a", 0.0))
    assert got == [1.0, None, None, 0.0], "an episode that failed and an agent that is not trained have no credit"
    assert score(ours, trainer.episode("b", 1.0)) == [0.5], "and do not move the mean"


def test_history_by_source_kept_over_a_restart_and_only_on_resume(trainer):
    sources = [{"name": "math"}, {"name": "code/easy"}, {"name": "game", "algo": {"type": "rae"}}]
    config = trainer.config(*sources, batch_size=4)
    histories = prime_rl.install(config, LOO)
    assert list(histories) == ["math", "code/easy"]
    assert histories["math"].hook.step_rows == 1  # 4 rollouts per step, a third of them: rounded
    assert [h.file.name for h in histories.values()] == ["math.json", "code_easy.json"]
    score(built(trainer, config, 0), trainer.episode("a", 1.0))
    assert score(built(trainer, config, 1), trainer.episode("a", 1.0, source="code/easy")) == [1.0]
    resumed = trainer.config(*sources, batch_size=4, resume={})
    prime_rl.install(resumed, LOO)
    assert score(built(trainer, resumed), trainer.episode("b", 0.0)) == [-1.0]
    fresh = trainer.config(*sources, batch_size=4)
    prime_rl.install(fresh, LOO)
    assert score(built(trainer, fresh), trainer.episode("b", 0.5)) == [0.5], "a fresh run begins without history"


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        ({}, {"filter_zero_advantages": True}, r"train\.filter_zero_advantages=True .*set it to false"),
        ({"algo": {"type": "grpo", "length_penalty": {"type": "linear"}}}, {}, r"'math' .*algo\.length_penalty"),
        ({"curriculum": {"gates": {"zero": {"type": "advantage_range"}}}}, {}, r"curriculum\.gates.*advantage_range"),
        ({"algo": {"type": "rae"}}, {}, "no training source .* algorithm grpo"),
    ],
)
def test_settings_that_spoil_the_advantages_are_refused_before_the_start(trainer, source, changes, message):
    with pytest.raises(InputError, match=message):
        prime_rl.install(trainer.config({"name": "math", **source}, **changes), LOO)


def test_prime_rl_s_own_defaults_are_refused_for_the_filter_alone(trainer):
    """The rule must look where prime-rl's own configuration has the setting."""
    with pytest.raises(InputError) as refused:
        prime_rl.install(trainer._parts.config(trainer.folder, [{"name": "math"}], {}), LOO)
    assert str(refused.value).count("=True") == 1


def test_several_trained_agents_are_refused(trainer):
    config = trainer.config()
    prime_rl.install(config, LOO)
    with pytest.raises(InputError, match=r"'math' trains several agents \(black, white\)"):
        score(
            built(trainer, config), trainer.episode("a", 1.0, agent="black"), trainer.episode("a", 0.0, agent="white")
        )


def test_prompts_as_the_reader_of_traces_has_them(trainer):
    (plain,) = trainer.episode("add 1 and 1", 1.0).traces
    assert prime_rl.read_trace_prompt(plain) == "add 1 and 1"
    (system,) = trainer.episode("add", 1.0, system_prompt="Be brief.").traces
    assert prime_rl.read_trace_prompt(system) == "system: Be brief.\n\nuser: add"
    (opened,) = trainer.episode(None, 1.0, opening="the user opens").traces
    assert prime_rl.read_trace_prompt(opened) == "the user opens"
    opened.nodes[:] = opened.nodes[1:]
    with pytest.raises(InputError, match="neither task"):
        prime_rl.read_trace_prompt(opened)


def test_columns_come_from_the_task_s_data(trainer):
    config = trainer.config(batch_size=2)
    prime_rl.install(config, family_mean_baseline("family", window=8))
    ours = built(trainer, config)
    score(ours, trainer.episode("a", 1.0, family="add"), trainer.episode("b", 0.0, family="sort"))
    assert score(ours, trainer.episode("c", 1.0, family="sort")) == [1.0]
    with pytest.raises(InputError, match="column 'family'"):
        score(ours, trainer.episode("d", 1.0))


def test_prime_rl_that_is_not_here_is_said_in_a_sentence(monkeypatch):
    without(monkeypatch, "prime_rl")
    with pytest.raises(InputError, match="not installed here: it comes from its repository"):
        prime_rl.install(SimpleNamespace(), LOO)


def test_the_example_is_prime_rl_s_command_with_the_baseline_in_between(trainer, monkeypatch, tmp_path):
    KernelBaseline(window=16).fit(["add one", "sort two"]).save(tmp_path / "baseline.json")
    config, ran = trainer.config(), []
    if REAL:
        monkeypatch.setattr("prime_rl.utils.config.cli", lambda kind: config)
        orchestrator = module(monkeypatch, "prime_rl.orchestrator.orchestrator")
    else:
        module(monkeypatch, "prime_rl.configs.orchestrator", OrchestratorConfig=object)
        module(monkeypatch, "prime_rl.utils.config", cli=lambda kind: config)
        orchestrator = module(monkeypatch, "prime_rl.orchestrator.orchestrator")

    async def run_orchestrator(config):
        ran.append(built(trainer, config))

    orchestrator.run_orchestrator = run_orchestrator
    spec = importlib.util.spec_from_file_location(
        "prime_rl_gs1", Path(__file__).resolve().parents[2] / "examples" / "prime_rl_gs1.py"
    )
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr("sys.argv", ["prime_rl_gs1.py", str(tmp_path / "baseline.json"), "@", "orchestrator.toml"])
    example.main()
    assert type(ran[0]).__name__ == "BaselineAlgorithm"


@needs_prime_rl
def test_the_real_train_sink_ships_the_advantages_in_its_samples(trainer):
    """Episodes in, trainer payload out: score, admit, compile, batch, all prime-rl's own."""
    from prime_rl.orchestrator.train_sink import TrainSink
    from prime_rl.orchestrator.types import Progress

    config = trainer.config(batch_size=3)
    prime_rl.install(config, LOO)
    env = SimpleNamespace(
        config=config.train.source[0], algorithm=built(trainer, config), sampling_args={"temperature": 1.0}
    )
    sink = TrainSink(
        config,
        tokenizer=None,
        train_envs=SimpleNamespace(get=lambda name: env),
        mm_token_type_ids_mapping=None,
        progress=Progress(),
        batch_size=config.batch_size,
        token_batch_size=None,
    )

    async def feed():
        return [await sink.add(trainer.episode(p, r)) for p, r in [("a", 1.0), ("b", 0.0), ("c", 1.0)]]

    *early, batch = asyncio.run(feed())
    assert early == [None, None]
    # past means: none, so 0; 1; (1, 0)
    assert [s.advantages for s in batch.samples] == [[0, 0, 0, a, 0, a] for a in (1.0, -1.0, 0.5)]
    assert [s.mask for s in batch.samples] == [[False, False, False, True, False, True]] * 3


def test_log_probabilities_are_those_of_all_sampled_tokens(trainer):
    config = trainer.config(batch_size=2)
    prime_rl.install(config, MeanSurprise())
    ours = built(trainer, config)
    score(ours, trainer.episode("a", 0.0, log_probs=(-1.0, -2.0, -3.0)), trainer.episode("b", 0.0, log_probs=(-2.0,)))
    assert score(ours, trainer.episode("c", 0.0)) == [-4.0]  # of 6 and 2
    unknown = trainer.episode("d", 0.0)
    unknown.traces[0].nodes[1].logprobs = []
    assert score(ours, unknown) == [-4.0]  # c waits; two more join below: 0.75 and one that nobody knows
    assert score(ours, trainer.episode("e", 0.0)) == [pytest.approx(-(6 + 2 + 0.75) / 3)]
