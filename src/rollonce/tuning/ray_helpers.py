"""A search that a Ray cluster helps with: every CPU of it joins the search in the shared storage, while this process
runs it. Optuna's storage is all that they share; what was found counts towards the budget wherever it was found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollonce.errors import InputError
from rollonce.ray_nodes import connect_to_ray_cluster, describe_ray_error, make_node_check, write_shared_token
from rollonce.rollouts import Rollouts

TIMES_STARTED_AGAIN = 10
"""How often Ray starts a helper again whose node or process died."""


@contextlib.contextmanager
def search_helpers_on_ray(address: str | None, rollouts: Rollouts, settings: dict[str, Any]) -> Iterator[list[str]]:
    """While inside, helpers make trials of the same search.

    Args:
        address: See `rollonce.ray_nodes.connect_to_ray_cluster`.
        rollouts: The table.
        settings: What `rollonce.tuning.tune.tune` is called with here, ``storage`` among it: a file that every node
            sees, or the URL of a database that every node reaches.

    Yields:
        Sentences about helpers that could not help: complete when the search is over.

    Raises:
        InputError: no cluster there, or no storage to share.
    """
    storage = settings.get("storage")
    if storage is None:
        raise InputError("--ray shares a search: give --storage, a file that all nodes see or a database URL")
    complaints: list[str] = []
    with contextlib.ExitStack() as stack:
        check = make_node_check()
        if "://" not in storage:
            path = Path(storage).resolve()
            settings = {**settings, "storage": str(path)}
            check = make_node_check(path.parent, stack.enter_context(write_shared_token(path.parent)))
        ray = connect_to_ray_cluster(address)
        stack.callback(ray.shutdown)

        def help_with_search(table: Rollouts) -> str | None:
            if (reason := check()) is not None:
                return reason
            from rollonce.tuning.tune import tune

            tune(table, **settings)
            return None

        task = ray.remote(help_with_search).options(num_cpus=1, max_retries=TIMES_STARTED_AGAIN)
        table = ray.put(rollouts)
        helpers = [task.remote(table) for _ in range(int(ray.cluster_resources()["CPU"]))]
        try:
            yield complaints
        finally:
            ended, under_way = ray.wait(helpers, num_returns=len(helpers), timeout=0)
            for helper in under_way:
                ray.cancel(helper, force=True)
            for helper in ended:
                try:
                    if (reason := ray.get(helper)) is not None:
                        complaints.append(reason)
                except ray.exceptions.RayError as error:
                    complaints.append(describe_ray_error(error))
