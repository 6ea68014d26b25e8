"""A tuned baseline inside the trainers people already use: one thin file per trainer, and what they share.

Importing any module here loads numpy and `rollonce.baselines` only; a trainer's own package is imported on first use of
its adapter. Which trainers, which versions, what was tested how: ``docs/integrations.md``.
"""

from rollonce.integrations.hook import AdvantageHook, AdvantageResult
from rollonce.integrations.notices import AdvantageWarning
from rollonce.integrations.rows import (
    Rows,
    World,
    gather_rows,
    make_rollout_rows,
    render_prompt_text,
    stable_task_id,
)
from rollonce.setting_rules import Rule, read_dotted_setting, refuse

__all__ = [
    "AdvantageHook",
    "AdvantageResult",
    "AdvantageWarning",
    "Rows",
    "Rule",
    "World",
    "gather_rows",
    "make_rollout_rows",
    "read_dotted_setting",
    "refuse",
    "render_prompt_text",
    "stable_task_id",
]
