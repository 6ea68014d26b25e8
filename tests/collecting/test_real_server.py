"""Against a real OpenAI-compatible server: ``transformers serve`` on the loopback, with the embedded policy behind
it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from rollonce.collecting import CollectSettings, collect_rollouts
from rollonce.errors import InputError
from rollonce.readers import read_rollouts
from rollonce.tasks import load_tasks

pytest.importorskip("torch")
pytest.importorskip("reasoning_gym")
for needed in ("openai", "fastapi", "uvicorn"):
    pytest.importorskip(needed, reason="transformers serve needs it")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """(address, model name, directory) of a running server."""
    from rollonce.policies import embedded_directory

    directory = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(embedded_directory(), directory)
    file = directory / "generation_config.json"
    # Without do_sample this server decodes greedily, whatever temperature a request asks for; without top_k 0 it keeps
    # the 50 likeliest.
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_sample": True, "top_k": 0}))
    port = free_port()
    log = open(directory.parent / "log.txt", "w+")  # noqa: SIM115
    command = [Path(sys.executable).parent / "transformers", "serve", directory, "--host", "127.0.0.1", "--port", port]
    process = subprocess.Popen(
        [*map(str, command), "--device", "cpu", "--dtype", "float32"],
        stdout=log,
        stderr=subprocess.STDOUT,
        # A machine that never used the hub has no cache, and there this server fails to list its models (status 500).
        env={**os.environ, "HF_HOME": str(directory.parent / "none"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 3600  # ten seconds, unless the machine is busy
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                assert process.poll() is None, (directory.parent / "log.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1", str(directory), directory
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.mark.xdist_group("real server")
def test_rollouts_through_a_real_server_are_those_of_the_model_behind_it(served, tmp_path):
    from rollonce.policies import load_embedded

    url, name, _ = served
    settings = CollectSettings(
        name, "embedded", str(tmp_path / "x.jsonl"), n_tasks=12, n_rollouts=4, url=url, max_tokens=96, concurrency=4
    )
    done = collect_rollouts(settings)
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert done.counts.rollouts == len(rows) == 48
    assert {(r["task_id"], r["rollout_id"]) for r in rows} == {
        (t.id, i) for t in load_tasks("embedded", train=0, holdout=12, test=0).holdout for i in range(4)
    }
    policy = load_embedded()
    for r in rows:
        # The server's count of the prompt is the tokenizer's, chat template and all; a whole response has one token
        # more than its text.
        ids, _ = policy.encode_prompts([r["prompt"]])
        assert r["prompt_tokens"] == ids.shape[1]
        if not r["truncated"]:
            assert (
                r["response_tokens"] == len(policy.tokenizer(r["response"], add_special_tokens=False)["input_ids"]) + 1
            )
    assert len({r["response"] for r in rows}) > 24
    table = read_rollouts(settings.out, columns=["family", "level"])
    assert table.n_tasks == 12
    # Two samples of one policy on the same tasks: mean rewards agree within four standard errors.
    collect_rollouts(
        CollectSettings("embedded", "embedded", str(tmp_path / "here.jsonl"), n_tasks=12, n_rollouts=4, max_tokens=96)
    )
    here = read_rollouts(str(tmp_path / "here.jsonl"))
    assert here.tasks.task_ids.tolist() == table.tasks.task_ids.tolist()
    assert abs(here.rewards_R.mean() - table.rewards_R.mean()) < 4 * np.sqrt(2 * np.mean(here.variances_N) / 48)
    assert np.mean(table.rewards_R) > 0.1


@pytest.mark.xdist_group("real server")
def test_a_real_server_that_answers_with_another_model_is_seen_through(served, tmp_path):
    """This server was started for one model and answers with it whatever name it is asked for."""
    url, name, _ = served
    said: list[str] = []
    collect_rollouts(
        CollectSettings(
            "no/such-model", "embedded", str(tmp_path / "x.jsonl"), n_tasks=2, n_rollouts=1, url=url, retries=0
        ),
        say=said.append,
    )
    # This server passes over the field logprobs: said once, and it costs no try.
    other, without = said
    assert without == "the column log_prob is left out: the server returns no log-probabilities"
    assert "asked for 'no/such-model'" in other
    assert name in other
    note = json.loads((tmp_path / "x.jsonl.collect.json").read_text())
    assert note["server"]["answered_model"].startswith(name)


@pytest.mark.xdist_group("real server")
def test_the_real_server_has_no_completions_and_the_sentence_says_which_api_to_try(served, tmp_path):
    url, name, _ = served
    with pytest.raises(InputError, match=r"or try --api chat"):
        collect_rollouts(
            CollectSettings(
                name, "embedded", str(tmp_path / "x.jsonl"), n_tasks=2, n_rollouts=1, url=url, api="completions"
            )
        )
