"""Inspect AI's ``.eval`` logs (and its JSON logs), through Inspect's own reader: extra ``inspect``.

The scorer is named with ``reward=`` where a log has several; ``scorer.key`` picks one value of a scorer that gives
several. The letters of Inspect's own metrics count as C 1, P 0.5, I 0, N 0. Epochs are the repeats. Samples that ended
in an error are bad rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from rollonce.errors import InputError, MissingExtraError
from rollonce.readers.base import Format, Row
from rollonce.readers.jsonl import Reject, Tell
from rollonce.readers.log_probs import unwrap_token_log_probs
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe
from rollonce.readers.values import describe_value_kind

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


class Inspect(Format):
    name = "inspect"
    uses = frozenset({"reward"})
    streams = False
    whole_file = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._run = self._task = ""

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """A zip with Inspect's header or journal, or a JSON document with ``eval`` and ``status``."""
        if probe.kind == "zip":
            return "header.json" in probe.names or any(n.startswith("_journal/") for n in probe.names)
        return probe.kind in ("json", "jsonl") and probe.has_all_keys("version", "status", "eval", "plan")

    @classmethod
    def find_policy_name(cls, probe: Probe) -> str | None:
        read_eval_log, _ = _import_log_functions()
        try:
            return read_eval_log(str(probe.path), header_only=True).eval.model
        except (ValueError, OSError, KeyError):
            return None  # what is wrong with the file is said when its samples are read

    def read_record_blocks(
        self, probe: Probe, reject: Reject, tell: Tell | None = None
    ) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Samples, a few at a time: they can be long."""
        read_eval_log, read_eval_log_samples = _import_log_functions()
        try:
            header = read_eval_log(str(probe.path), header_only=True)
            self._run = header.eval.run_id + "/" + header.eval.task_id
            self._task = header.eval.task
            samples = read_eval_log_samples(
                str(probe.path),
                all_samples_required=False,
                resolve_attachments="core",
                exclude_fields={"events", "store", "messages"},
            )
            number = 1
            while batch := list(islice(samples, 64)):
                yield range(number, number + len(batch)), [_convert_sample_to_dict(s) for s in batch]
                number += len(batch)
        except (ValueError, OSError, KeyError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"Inspect's reader cannot read it ({str(error)[:160]})", file=probe.path) from None

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        """One sample of one epoch."""
        if record["error"]:
            raise InputError(
                f"this sample ended in an error ({record['error'][:80]}); skip_bad_rows passes over such rows"
            )
        task = f"{self._task}/{record['id']}"
        yield Row(
            record["input"],
            _read_sample_score(record["scores"], self.options.reward),
            task,
            f"{self._run}/{record['epoch']}",
            record["length"],
            log_prob=record["log_probs"],
        )


def _import_log_functions() -> tuple[Any, Any]:
    try:
        from inspect_ai.log import read_eval_log, read_eval_log_samples
    except ImportError:
        raise MissingExtraError("reading Inspect logs", "inspect-ai", "inspect") from None
    return read_eval_log, read_eval_log_samples


def _convert_sample_to_dict(sample: Any) -> dict[str, Any]:
    """The parts of Inspect's sample that are needed, as plain values; columns are looked up in it
    (``metadata.level``)."""
    text = sample.input
    if not isinstance(text, str):
        text = [{"role": m.role, "content": m.text} for m in text]
    usage = [u.output_tokens for u in (sample.model_usage or {}).values()]
    length = sum(usage) if usage else None
    # The log has the last model call's log-probabilities alone; they are the rollout's where it was the only call.
    choice = sample.output.choices[0] if sample.output and sample.output.choices else None
    log_probs = (
        None if choice is None or choice.logprobs is None else unwrap_token_log_probs(choice.logprobs.model_dump())
    )
    if log_probs is not None and length is not None and abs(length - len(log_probs)) > 1:
        log_probs = None
    return {
        "id": sample.id,
        "epoch": sample.epoch,
        "input": text,
        "target": sample.target,
        "metadata": sample.metadata or {},
        "scores": {name: score.value for name, score in (sample.scores or {}).items()},
        "error": sample.error.message if sample.error else None,
        "length": length,
        "log_probs": log_probs,
    }


def _read_sample_score(scores: dict[str, Any], wanted: str | None) -> Any:
    if not scores:
        raise InputError("this sample was not scored; skip_bad_rows passes over such rows")
    if wanted is None:
        if len(scores) > 1:
            raise InputError(f"several scorers ({', '.join(scores)}); name one with reward= (--reward)")
        wanted = next(iter(scores))
    key = None
    if wanted not in scores and "." in wanted:
        wanted, _, key = wanted.partition(".")
    if wanted not in scores:
        raise InputError(f"no scorer {wanted!r}; this log has {', '.join(scores)}")
    value = scores[wanted]
    if isinstance(value, dict):
        if key is None:
            raise InputError(
                f"the scorer {wanted!r} gives several values ({', '.join(value)}); name one, as in "
                f"reward='{wanted}.{next(iter(value))}'"
            )
        value = value.get(key)
    if isinstance(value, str):
        if value not in _LETTERS:
            raise InputError(
                f"the score is {describe_value_kind(value)}; a number, true/false, or one of C, P, I, N is expected"
            )
        return _LETTERS[value]
    return value
