"""What a directory of training runs says: arms compared, with intervals over seeds and items. Needs neither torch nor
the training side."""

from rollonce.comparison.analysis import Analysis, ArmSummary, ComparisonSettings, Difference, analyse_comparison
from rollonce.comparison.runs import FinishedRun, Runs, load_finished_runs

__all__ = [
    "Analysis",
    "ArmSummary",
    "ComparisonSettings",
    "Difference",
    "FinishedRun",
    "Runs",
    "analyse_comparison",
    "load_finished_runs",
]
