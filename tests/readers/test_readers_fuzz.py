"""Any valid rows come back as they were; any bytes at all raise nothing but InputError."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollonce.errors import InputError
from rollonce.readers import follow, read_rollouts
from rollonce.rounding import rewards_are_equal

finite = st.floats(allow_nan=False, allow_infinity=False)
ids = st.one_of(st.text(max_size=8), st.integers(-(2**53), 2**53))
rows = st.lists(
    st.tuples(ids, st.text(max_size=40), st.one_of(finite, st.booleans(), st.integers(-(10**6), 10**6))),
    min_size=1,
    max_size=30,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows, st.booleans(), st.booleans())
def test_rows_round_trip(given_rows, ascii_only, packed) -> None:
    prompts: dict[str, str] = {}
    text = ""
    expected: dict[str, list[float]] = {}
    for task, prompt, reward in given_rows:
        prompt = prompts.setdefault(str(task), prompt)
        text += json.dumps({"task_id": task, "prompt": prompt, "reward": reward}, ensure_ascii=ascii_only) + "\n"
        expected.setdefault(str(task), []).append(float(reward))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        data = text.encode("utf-8", "surrogatepass")
        path.write_bytes(gzip.compress(data) if packed else data)
        table = read_rollouts(path)
    assert table.tasks.task_ids.tolist() == list(expected)
    assert table.tasks.prompts == [prompts[t] for t in expected]
    everything = np.concatenate(list(expected.values()))
    if rewards_are_equal(everything):  # but for rounding, they are one number
        np.testing.assert_array_equal(table.rewards_R, np.full(len(everything), table.rewards_R[0]))
        return
    for i, rewards in enumerate(expected.values()):
        same = [rewards[0]] * len(rewards)
        np.testing.assert_array_equal(table.group(i), same if rewards_are_equal(np.array(rewards)) else rewards)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
_KEYS = (
    "prompt reward task_id rollout_id step input output gts score uid example_id completion traces task rewards turns "
    "benchmark idx group_idx traj_idx iteration total_reward doc_id doc_hash resps arguments content input_lengths "
    "input_prompt output_response split steps meta summary tasks eval hash log_prob log_probs messages n n_correct "
    "results simulations responses_create_params response result passed filtered_resps doc_id choices"
)
KEYS = _KEYS.split()
near_rows = st.lists(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=12), min_size=1, max_size=5)
contents = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=60).map(lambda b: b'{"prompt": "x", "reward": 1}\n' + b),
    near_rows.map(lambda r: "\n".join(json.dumps(x) for x in r).encode()),
    st.binary(max_size=60).map(lambda b: b"PAR1" + b),
    st.binary(max_size=60).map(lambda b: b"PK\x03\x04" + b),
    st.binary(max_size=60).map(lambda b: b"\x1f\x8b" + b),
    st.binary(max_size=60).map(lambda b: b"prompt,reward\n" + b),
    st.binary(max_size=60).map(lambda b: b"[" + b),
    near_rows.map(lambda r: json.dumps(r).encode()),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    contents,
    st.sampled_from(
        [
            None,
            None,
            "generic",
            "verl",
            "trl",
            "verifiers",
            "verifiers-legacy",
            "prime-rl",
            "tinker-evals",
            "skyrl",
            "nemo-rl",
            "lm-eval",
            "evalplus",
            "automationbench",
            "humaneval",
            "nemo-gym",
            "tau2-bench",
        ]
    ),
    st.booleans(),
)
def test_any_bytes_raise_nothing_but_input_errors(data, format, skip) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(data)
        said = ""
        try:
            table = read_rollouts(path, format=format, skip_bad_rows=skip)
        except InputError as error:
            said = str(error)
        if said:
            assert str(path) in said  # the file is always named
        else:
            assert np.isfinite(table.rewards_R).all()
            assert table.n_rollouts >= 1
        try:
            for block in follow(path, format=format, skip_bad_rows=skip, stop=lambda: True):
                assert not any(math.isnan(r) for r in block.rewards_B)
        except InputError:
            pass
