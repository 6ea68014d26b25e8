"""One collection from beginning to end: tasks, rollouts, grades, the file.

A model on this machine works through blocks of fixed rollouts, one after the other; a server gets requests from a fixed
number of workers. Either way a rollout that has a row is never asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rollonce.collecting.settings import (
    CollectSettings,
    Sampled,
    check_collect_settings,
    make_rollout_row,
    seed_of_rollout,
)
from rollonce.collecting.sources import draw_tasks_by_seed
from rollonce.collecting.store import Counts, Pair, Store
from rollonce.tasks import Task, grade

Tell = Callable[[Store, int], None]
"""Hears, after every write, of the store and of how many rollouts there will be."""


class Asker(Protocol):
    """What gives one rollout per call, with many calls at once: a server, or an environment that asks one.

    ``prepare_for_sampling`` comes first and raises `InputError` if it cannot be asked at all; ``close`` comes last.
    """

    retries: int

    async def prepare_for_sampling(self) -> None: ...

    async def sample_rollout(self, task: Task, seed: int) -> Sampled: ...

    async def close(self) -> None: ...


class Collected(NamedTuple):
    """A finished collection.

    Attributes:
        path: The file.
        counts: What its rollouts add up to.
        added: How many of them this run added.
        server: What was found out about the policy, as the provenance has it.
    """

    path: Path
    counts: Counts
    added: int
    server: dict[str, Any]


def collect_rollouts(
    settings: CollectSettings, *, tell: Tell | None = None, say: Callable[[str], None] | None = None
) -> Collected:
    """N x G rollouts in a file, those that are there already kept.

    Args:
        settings: What to collect.
        tell: Hears of progress.
        say: Takes sentences for the user.

    Raises:
        InputError: anything that the user can mend. Rollouts that were finished before it stay, and the same settings
            go on from there.
    """
    settings, say = check_collect_settings(settings), say or (lambda text: None)
    settings.read_key_from_environment()  # a key that is not there is said before tasks are made
    if settings.uses_environment:
        from rollonce.collecting.environment import Environment

        environment = Environment.from_settings(settings)
        tasks = environment.tasks
    else:
        environment, tasks = None, draw_tasks_by_seed(settings)
    if settings.is_local_model:
        from rollonce.collecting.local import Local

        model = Local(settings)
        store = Store(settings, tasks, model.fingerprint_weights())
        store.server["log_prob"] = model.describe_log_prob_column()

        def collect_missing_rollouts() -> None:
            _collect_by_blocks(settings, store, tasks, model.sample_rollouts, tell)
    else:
        store = Store(settings, tasks)

        def collect_missing_rollouts() -> None:
            asyncio.run(_collect_by_requests(settings, store, tasks, environment, tell, say))

    n = settings.n_tasks * settings.n_rollouts
    if store.started:
        say(f"{store.started} of {n} rollouts are there already")
    try:
        if store.missing_rollouts():
            collect_missing_rollouts()
        counts = store.count_rollouts_and_tokens()
        store.write_finished_file()
    except BaseException:
        if store.rows:
            say(f"{len(store.rows)} of {n} rollouts are kept in {store.part}; the same command goes on from there")
        store.close_unfinished()
        raise
    return Collected(store.path, counts, counts.rollouts - store.started, store.server)


def _collect_by_blocks(
    s: CollectSettings,
    store: Store,
    tasks: Sequence[Task],
    sample: Callable[[Sequence[Task], Sequence[int]], list[Sampled]],
    tell: Tell | None,
) -> None:
    by_id = {t.id: t for t in tasks}
    for block in store.split_into_blocks(s.batch_rows):
        if all(pair in store.rows for pair in block):
            continue
        # The whole block even if a kill in the midst of its write left a part of it: a rollout is the same only among
        # the same neighbours.
        group = [by_id[i] for i, _ in block]
        seeds = [seed_of_rollout(s.seed, *pair) for pair in block]
        got = sample(group, seeds)
        fresh = [k for k, pair in enumerate(block) if pair not in store.rows]
        grades = grade(
            [group[k] for k in fresh],
            [got[k].text for k in fresh],
            truncated=[got[k].truncated for k in fresh],
            time_limit=s.time_limit,
        )
        each = zip(fresh, grades.rewards, grades.failures, strict=True)
        store.append_rollout_rows(
            [
                make_rollout_row(group[k], got[k], rollout=block[k][1], seed=seeds[k], reward=reward, failure=failure)
                for k, reward, failure in each
            ]
        )
        if tell:
            tell(store, len(tasks) * s.n_rollouts)


async def _collect_by_requests(
    s: CollectSettings,
    store: Store,
    tasks: Sequence[Task],
    environment: Any,
    tell: Tell | None,
    say: Callable[[str], None],
) -> None:
    from rollonce.collecting.endpoint import Endpoint

    endpoint = Endpoint(s, store.server, say)
    asker: Asker = environment.make_rollout_asker(endpoint, store.server) if environment else endpoint
    by_id = {t.id: t for t in tasks}
    try:
        await asker.prepare_for_sampling()
        pairs = store.missing_rollouts()
        # The first alone: what is wrong with the model's name or a field is found out once, not by sixteen requests.
        await _collect_one_rollout(s, store, asker, by_id, pairs[0], tell)
        waiting = iter(pairs[1:])

        async def collect_waiting_pairs() -> None:
            for pair in waiting:
                await _collect_one_rollout(s, store, asker, by_id, pair, tell)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(s.concurrency, len(pairs) - 1)):
                group.create_task(collect_waiting_pairs())
    except BaseExceptionGroup as errors:  # of the workers: the first failure cancels the others
        raise _first_error_of_group(errors) from None
    finally:
        store.retries = asker.retries
        await asker.close()


async def _collect_one_rollout(
    s: CollectSettings, store: Store, asker: Asker, by_id: dict[str, Task], pair: Pair, tell: Tell | None
) -> None:
    task, seed = by_id[pair[0]], seed_of_rollout(s.seed, *pair)
    got = await asker.sample_rollout(task, seed)
    if got.reward is None:
        # In a thread: a grader may take its whole time limit, and the other requests should not wait for it.
        grades = await asyncio.to_thread(grade, [task], [got.text], truncated=[got.truncated], time_limit=s.time_limit)
        reward, failure = grades.rewards[0], grades.failures[0]
    else:
        reward, failure = got.reward, got.failure
    store.retries = asker.retries
    sent = None if "refused" in str(store.server.get("seed", "")) else seed
    store.append_rollout_rows([make_rollout_row(task, got, rollout=pair[1], seed=sent, reward=reward, failure=failure)])
    if tell:
        tell(store, len(by_id) * s.n_rollouts)


def _first_error_of_group(errors: BaseExceptionGroup) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
