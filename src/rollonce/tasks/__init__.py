"""Verifiable tasks and their graders. Importing this loads neither torch nor reasoning-gym; the first use of a source
does."""

from __future__ import annotations

from rollonce.tasks.base import (
    SPLITS,
    Grader,
    Task,
    TaskSet,
    TaskSplits,
    canonical_split_name,
    check_splits_disjoint,
    split_of,
)
from rollonce.tasks.embedded import EMBEDDED_SOURCES, draw_embedded_tasks
from rollonce.tasks.grading import GRADERS, extract_final_answer, find_grader_by_name
from rollonce.tasks.jsonl import load_jsonl_tasks
from rollonce.tasks.maths import load_gsm8k_tasks, load_math500_tasks
from rollonce.tasks.reasoning_gym import ReasoningGymSource, draw_reasoning_gym_tasks
from rollonce.tasks.registry import (
    SOURCES,
    list_source_usages,
    load_tasks,
    parse_source_spec,
    read_worked_solutions,
    usual_source_spec,
)
from rollonce.tasks.sandbox import Grades, grade
from rollonce.tasks.source import Source, TaskRequest, choose_tasks

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
    "canonical_split_name",
    "check_splits_disjoint",
    "choose_tasks",
    "draw_embedded_tasks",
    "draw_reasoning_gym_tasks",
    "extract_final_answer",
    "find_grader_by_name",
    "grade",
    "list_source_usages",
    "load_gsm8k_tasks",
    "load_jsonl_tasks",
    "load_math500_tasks",
    "load_tasks",
    "parse_source_spec",
    "read_worked_solutions",
    "split_of",
    "usual_source_spec",
]
