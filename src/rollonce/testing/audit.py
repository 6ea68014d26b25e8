"""`check_baseline`: one audit for all baselines, ours or a user's, as scikit-learn's ``check_estimator`` is for
estimators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rollonce.errors import InputError
from rollonce.rollouts import Tasks
from rollonce.testing import always, promised
from rollonce.testing.subject import Failed, Subject, prepare_audit_subject


class CheckResult(NamedTuple):
    """One check's verdict.

    Attributes:
        name: Of the check: ``leave_one_out``, ``order`` ...
        passed: Whether the baseline holds it.
        message: A sentence; of a failed check it names the value that gave it away.
    """

    name: str
    passed: bool
    message: str


def _choose_applicable_checks(s: Subject) -> list[tuple[str, Callable[[Subject], str]]]:
    tags = s.template.tags
    chosen: list[Callable[[Subject], str]] = [
        always.output,
        always.no_side_effects,
        always.repeatable,
        always.order,
        always.batch_of_one,
    ]
    chosen += [always.equal_rewards, always.odd_prompts, always.response_length, always.own_log_prob]
    if not s.is_plain_function:
        chosen += [always.empty_batch, always.saves, promised.declared, promised.history]
    if s.is_linear_smoother:
        chosen.append(promised.weights)
    if tags.leave_one_out:
        chosen.append(promised.leave_one_out)
    if tags.neutral and not tags.self_inclusive:
        chosen.append(promised.neutral)
    by_tag = [
        "shift_equivariant",
        "scale_equivariant",
        "needs_groups",
        "needs_repeats",
        "bounded_rewards",
        "self_inclusive",
    ]
    chosen += [getattr(promised, tag) for tag in by_tag if getattr(tags, tag)]
    return [(check.__name__, check) for check in chosen]


def check_baseline(
    baseline: Any,
    *,
    prompts: Sequence[str] | Tasks | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    seed: int = 0,
    raise_on_failure: bool = False,
) -> list[CheckResult]:
    """Audit a baseline: does it leak, and does it keep what its tags promise?

    Args:
        baseline: A `Baseline` (audited as it is fitted, without its history; fitted here if it was not), a class of
            baselines or a function without arguments that makes one, or a plain function ``fn(batch) -> b``,
            ``fn(prompts, rewards) -> b`` or one that names any of prompts, rewards, task_ids, response_lengths,
            log_probs, responses. Nothing is changed: the audit works on copies.
        prompts: Prompts to draw batches from; made up (in the baseline's vocabulary, where it has one) if None.
        columns: Declared columns, a value for each prompt; what the baseline reads and is not here is made up.
        seed: Of everything random in the audit.
        raise_on_failure: Raise instead of reporting.

    Returns:
        A result for each check that applies, in a fixed order. A check that crashed counts as failed.

    Raises:
        InputError: if ``baseline`` is nothing that can be audited.
        AssertionError: if a check failed and ``raise_on_failure`` is set; all failures are listed.

    >>> from rollonce.testing import check_baseline
    >>> leaky = lambda prompts, rewards: [rewards.mean()] * len(prompts)
    >>> [r.name for r in check_baseline(leaky) if not r.passed]
    ['batch_of_one', 'leave_one_out']
    """
    if isinstance(prompts, Tasks):
        columns = {c: prompts.column(c).tolist() for c in prompts.column_names} | dict(columns or {})
        prompts = prompts.prompts
    subject = prepare_audit_subject(baseline, prompts, columns, seed)
    results = []
    for name, check in _choose_applicable_checks(subject):
        try:
            results.append(CheckResult(name, True, check(subject)))
        except Failed as e:
            results.append(CheckResult(name, False, str(e)))
        except InputError as e:
            results.append(CheckResult(name, False, f"refused what it should accept: {e}"))
        except Exception as e:  # a user's code may raise anything, and the other checks still say something
            results.append(CheckResult(name, False, f"stopped with {type(e).__name__}: {e}"))
    failed = [r for r in results if not r.passed]
    if failed and raise_on_failure:
        raise AssertionError(
            f"{subject.template.label}: {len(failed)} of {len(results)} checks failed\n"
            + "\n".join(f"  {r.name}: {r.message}" for r in failed)
        )
    return results
