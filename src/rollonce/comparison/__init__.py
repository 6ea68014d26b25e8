"""What a directory of training runs says: arms compared, with intervals over seeds and items. Needs neither torch nor
the training side."""

from rollonce.comparison.analysis import Analysis, ArmSummary, ComparisonSettings, Difference, analyse
from rollonce.comparison.runs import FinishedRun, Runs, load_runs

__all__ = ["Analysis", "ArmSummary", "ComparisonSettings", "Difference", "FinishedRun", "Runs", "analyse", "load_runs"]
