"""A reward that a random model can earn, so that every stage can be walked through without a model that solves
anything.

For tests of the machinery only: a specification with ``dense_reward`` says so on its page, and its verdict means
    nothing.
"""

from __future__ import annotations

from rollonce.tasks import Task, TaskSet


def share_of_even_characters(response: str, reference: str) -> float:
    """Share of the response's characters whose code is even; 0.5 for an empty one. In [0, 1], whatever the reference.

    >>> share_of_even_characters("abab", "42")
    0.5
    """
    return sum(ord(c) % 2 == 0 for c in response) / len(response) if response else 0.5


# A model that knows nothing hardly ever ends by itself.
share_of_even_characters.grades_truncated = True  # type: ignore[attr-defined]


def with_dense_reward(tasks: TaskSet) -> TaskSet:
    """The same tasks, graded by `share_of_even_characters`."""
    return TaskSet([Task(t.id, t.prompt, t.reference, share_of_even_characters, t.columns) for t in tasks], tasks.name)
