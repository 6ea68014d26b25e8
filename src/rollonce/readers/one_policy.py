"""Rows of one's own that say which model they were sampled from: those of two models make no one table, since what is
between the models would count as noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.options import Options
from rollonce.readers.values import describe_record_keys

POLICY_KEYS = ("model", "model_name", "model_id", "policy")


class OnePolicy:
    """Keeps the rows of one policy: of the one that ``filter=`` names, or all if they are of one.

    Args:
        options: Of the reading.
        moves: Whether rows carry a training step, so that the policy may change its name along the way.
    """

    def __init__(self, options: Options, moves: bool) -> None:
        self._wanted, self._moves = options.filter, moves
        self._declared = {column.key for column in options.columns}
        self._key: str | None = None
        self._policies: dict[str, None] = {}

    def keep_policy_rows(self, lines: Sequence[int], records: list[Any]) -> tuple[Sequence[int], list[Any], list[str]]:
        """Lines and records that stay, and the policies of those that do not.

        Raises:
            InputError: for rows of two policies without a filter, or a filter where rows name no policy.
        """
        if self._key is None:
            first = next((r for r in records if isinstance(r, dict)), {})
            known = [k for k in POLICY_KEYS if isinstance(first.get(k), str) and k not in self._declared]
            self._key = next(iter(known), "")
            if self._wanted is not None and not self._key:
                raise InputError(
                    f"filter={self._wanted!r} (--filter) does nothing for rows without a key {', '.join(POLICY_KEYS)}; "
                    f"leave it out; {describe_record_keys(first)}"
                )
        if not self._key or (self._moves and self._wanted is None):
            return lines, records, []
        policies = [r.get(self._key) if isinstance(r, dict) else None for r in records]
        if self._wanted is not None:
            kept = [i for i, policy in enumerate(policies) if policy == self._wanted]
            others = [str(policy) for policy in policies if policy != self._wanted]
            return [lines[i] for i in kept], [records[i] for i in kept], others
        self._policies |= dict.fromkeys(policy for policy in policies if isinstance(policy, str))
        if len(self._policies) > 1:
            named = ", ".join(map(repr, list(self._policies)[:4]))
            raise InputError(
                f"rollouts of {len(self._policies)} policies make no one table: {self._key!r} is {named}; read those "
                f"of one with filter= (--filter {next(iter(self._policies))}), or declare it as a column if it is none"
            )
        return lines, records, []
