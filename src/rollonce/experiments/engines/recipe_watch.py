"""A recipe of tinker-cookbook, watched.

    python -m rollonce.experiments.engines.recipe_watch WATCH.json -- MODULE ...

The recipe itself is not touched. Three things happen around its calls of the SDK: its adapters are asked for with the
registered seed, which the recipe leaves out; its own training client is compared with the policy that every arm must
start from, before the first update; and the parameters of every optimizer step are written down as they are sent.

``WATCH.json`` holds ``seed``, ``out``, and ``start`` (``rows`` of token ids, their ``log_probs``, ``atol``) or null.
``out`` gets JSON lines: ``{"adapters": ...}``, ``{"start_difference": ...}``, ``{"adam": ...}``.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollonce.experiments.engine import largest_difference

OTHER_START = 3
"""Exit code of a recipe whose client does not start from the common policy."""


class Watch:
    """What happens around the SDK's calls."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.seed, self.start, self.out = settings["seed"], settings["start"], Path(settings["out"])
        self._adam: dict[str, Any] | None = None

    def append_watch_row(self, row: dict[str, Any]) -> None:
        with self.out.open("a", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")

    def with_registered_seed(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a request for adapters, with the registered seed."""
        options = {**options, "seed": self.seed}
        self.append_watch_row({"adapters": {"seed": self.seed, "rank": options.get("rank")}})
        return options

    def require_common_start(self, client: Any) -> None:
        """End the process unless this client starts from the common policy."""
        if self.start is None:
            return
        log_probs = client_log_probs(client, self.start["rows"])
        difference = largest_difference(log_probs, self.start["log_probs"])
        self.append_watch_row({"start_difference": difference})
        if difference is None or difference > self.start["atol"]:
            print(f"rollonce: this client does not start from the common policy (differs by {difference})")
            sys.stdout.flush()
            # Not SystemExit: an event loop between here and the process's end would wait for the session.
            import os

            os._exit(OTHER_START)

    def note_adam_settings(self, adam: Any) -> None:
        """Write down an optimizer step's parameters, where they are other than the last one's."""
        values = adam.model_dump() if hasattr(adam, "model_dump") else dict(vars(adam))
        if values != self._adam:
            self._adam = values
            self.append_watch_row({"adam": values})


def client_log_probs(client: Any, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-probabilities of each row's tokens after its first, by a forward pass of a training client."""
    import tinker  # type: ignore[import-not-found]
    import torch

    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(list(row[:-1])),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData.from_torch(torch.tensor(row[1:], dtype=torch.int64)),
                "weights": tinker.TensorData.from_torch(torch.ones(len(row) - 1)),
            },
        )
        for row in rows
    ]
    outputs = client.forward(data, "cross_entropy").result().loss_fn_outputs
    return [[float(x) for x in out["logprobs"].data][: len(row) - 1] for out, row in zip(outputs, rows, strict=True)]


def watch_sdk_methods(watch: Watch) -> None:
    """Put the watch around the SDK's methods."""
    import tinker  # type: ignore[import-not-found]

    _wrap_client_creation(tinker.ServiceClient, watch)
    for name in ("optim_step", "optim_step_async"):
        original = getattr(tinker.TrainingClient, name)

        def watched_optimizer_step(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            # Wherever a version of the SDK takes them: by position, or under one of two names.
            for value in (*args[1:], *kwargs.values()):
                if isinstance(value, tinker.AdamParams):
                    watch.note_adam_settings(value)
            return _original(*args, **kwargs)

        setattr(tinker.TrainingClient, name, functools.wraps(original)(watched_optimizer_step))


def _wrap_client_creation(service: Any, watch: Watch) -> None:
    plain, later = service.create_lora_training_client, service.create_lora_training_client_async
    inside = [False]  # one of the two may call the other

    @functools.wraps(plain)
    def create_watched_client(self: Any, *args: Any, **options: Any) -> Any:
        if inside[0]:
            return plain(self, *args, **options)
        client = plain(self, *args, **watch.with_registered_seed(options))
        watch.require_common_start(client.result() if hasattr(client, "result") else client)
        return client

    @functools.wraps(later)
    async def create_watched_client_async(self: Any, *args: Any, **options: Any) -> Any:
        inside[0] = True
        try:
            client = await later(self, *args, **watch.with_registered_seed(options))
        finally:
            inside[0] = False
        watch.require_common_start(client.result() if hasattr(client, "result") else client)
        return client

    service.create_lora_training_client, service.create_lora_training_client_async = (
        create_watched_client,
        create_watched_client_async,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the module under the watch."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    watch_sdk_methods(Watch(json.loads(Path(words[0]).read_text(encoding="utf-8"))))
    module, sys.argv = words[2], words[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
