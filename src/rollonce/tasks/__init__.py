"""Verifiable tasks and their graders. Importing this loads neither torch nor reasoning-gym; the first use of a source
does."""

from __future__ import annotations

from rollonce.tasks.base import SPLITS, Grader, Task, TaskSet, TaskSplits, check_disjoint, split_named, split_of
from rollonce.tasks.embedded import EMBEDDED_SOURCES, embedded_tasks
from rollonce.tasks.grading import GRADERS, extract_answer, grader_by_name
from rollonce.tasks.jsonl import jsonl_tasks
from rollonce.tasks.maths import gsm8k_tasks, math500_tasks
from rollonce.tasks.reasoning_gym import ReasoningGymSource, reasoning_gym_tasks
from rollonce.tasks.registry import SOURCES, load_tasks, source_of, source_usages, usual_spec, worked_solutions
from rollonce.tasks.sandbox import Grades, grade
from rollonce.tasks.source import Source, TaskRequest, choose

__all__ = [
    "EMBEDDED_SOURCES",
    "GRADERS",
    "SOURCES",
    "SPLITS",
    "Grader",
    "Grades",
    "ReasoningGymSource",
    "Source",
    "Task",
    "TaskRequest",
    "TaskSet",
    "TaskSplits",
    "check_disjoint",
    "choose",
    "embedded_tasks",
    "extract_answer",
    "grade",
    "grader_by_name",
    "gsm8k_tasks",
    "jsonl_tasks",
    "load_tasks",
    "math500_tasks",
    "reasoning_gym_tasks",
    "source_of",
    "source_usages",
    "split_named",
    "split_of",
    "usual_spec",
    "worked_solutions",
]
