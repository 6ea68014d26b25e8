"""A model on this machine as a policy: the embedded one, or any causal language model of transformers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollonce.collecting.settings import CollectSettings, Sampled
from rollonce.errors import InputError
from rollonce.tasks import Task

_PIECE = 1 << 20
_WHOLE = 64 << 20


class Local:
    """A loaded model.

    Args:
        settings: ``policy`` and how to sample.

    Raises:
        InputError: no such model.
        MissingExtraError: torch or transformers is not installed.
    """

    def __init__(self, settings: CollectSettings) -> None:
        from rollonce.policies import TransformersPolicy, embedded_directory, load_embedded

        if settings.max_tokens > 1_000_000:
            raise InputError(f"--max-tokens {settings.max_tokens} is more than any model on this machine will write")
        options: dict[str, Any] = {"device": settings.device}
        # A policy saved by rollonce knows its own template and system message; only what was given replaces them.
        if settings.template != "{prompt}":
            options["prompt_template"] = settings.template
        if settings.system is not None:
            options["system"] = settings.system
        self.settings = settings
        embedded = settings.policy == "embedded"
        self.directory = embedded_directory() if embedded else Path(settings.policy).expanduser()
        _silence_libraries()
        try:
            self.policy = load_embedded(**options) if embedded else TransformersPolicy.load(settings.policy, **options)
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f"the model {settings.policy!r} cannot be put on --device {settings.device!r}: "
                f"{_first_line_of_error(error)}"
            ) from error

    def fingerprint_weights(self) -> str:
        """A digest of the weights, equal for equal files; "" for a hub id, whose files the hub's own cache keeps apart.

        Of files above 64 MiB it reads the size, the first and the last MiB: training moves every tensor, and reading
        30 GB takes a minute.
        """
        if not self.directory.is_dir():
            return ""
        digest = hashlib.blake2b(digest_size=12)
        for file in sorted(
            p
            for p in self.directory.iterdir()
            if p.suffix in (".safetensors", ".bin", ".json", ".jinja") and p.is_file()
        ):
            size = file.stat().st_size
            digest.update(f"{file.name}\0{size}\0".encode())
            with open(file, "rb") as f:
                if size <= _WHOLE:
                    digest.update(f.read())
                else:
                    digest.update(f.read(_PIECE))
                    f.seek(-_PIECE, 2)
                    digest.update(f.read(_PIECE))
        return digest.hexdigest()

    def describe_log_prob_column(self) -> str:
        """What the column ``log_prob`` holds, for the provenance."""
        if self.settings.log_probs == "off":
            return "none: --log-probs off"
        return (
            "natural logarithm, summed over the response's tokens and its end-of-sequence token, under the "
            f"distribution that was sampled from: the whole vocabulary at temperature {self.settings.temperature:g}"
        )

    def sample_rollouts(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[Sampled]:
        """One rollout per task, each with its own seed.

        Raises:
            InputError: the machine's memory does not hold the batch.
        """
        s = self.settings
        try:
            got = self.policy.sample(
                [t.prompt for t in tasks], max_new_tokens=s.max_tokens, temperature=s.temperature, generator=list(seeds)
            )
        except RuntimeError as error:
            if "out of memory" in str(error).lower() or "alloc" in str(error).lower():
                raise InputError(
                    f"--batch-rows {s.batch_rows} is more than the memory holds ({_first_line_of_error(error)}); "
                    "give less"
                ) from error
            raise
        prompt_tokens = got.prompt_mask_BP.sum(dim=1).tolist()
        is_kept = s.log_probs != "off"
        log_probs = got.log_probs_BT.double().sum(dim=1).tolist() if is_kept else [None] * len(tasks)
        each = zip(got.texts, prompt_tokens, got.lengths_B.tolist(), got.truncated_B.tolist(), log_probs, strict=True)
        return [
            Sampled(text, prompt_tokens=int(p), tokens=int(n), truncated=bool(cut), log_prob=log_prob)
            for text, p, n, cut, log_prob in each
        ]


def _silence_libraries() -> None:
    """Without transformers' own bar for loading, which stays on the screen."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _first_line_of_error(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
