"""Verifiable tasks and their graders. Importing this loads neither torch nor reasoning-gym; the first use of a source
does."""

from __future__ import annotations

from rollonce.tasks.base import SPLITS, Grader, Task, TaskSet, TaskSplits, check_disjoint, split_of
from rollonce.tasks.embedded import EMBEDDED_SOURCES, embedded_tasks
from rollonce.tasks.grading import GRADERS, extract_answer, grader_by_name
from rollonce.tasks.jsonl import jsonl_tasks
from rollonce.tasks.maths import gsm8k_tasks, math500_tasks
from rollonce.tasks.reasoning_gym import ReasoningGymSource, reasoning_gym_tasks
from rollonce.tasks.registry import SOURCES, TaskRequest, load_tasks
from rollonce.tasks.sandbox import Grades, grade

__all__ = [
    "EMBEDDED_SOURCES",
    "GRADERS",
    "SOURCES",
    "SPLITS",
    "Grader",
    "Grades",
    "ReasoningGymSource",
    "Task",
    "TaskRequest",
    "TaskSet",
    "TaskSplits",
    "check_disjoint",
    "embedded_tasks",
    "extract_answer",
    "grade",
    "grader_by_name",
    "gsm8k_tasks",
    "jsonl_tasks",
    "load_tasks",
    "math500_tasks",
    "reasoning_gym_tasks",
    "split_of",
]
