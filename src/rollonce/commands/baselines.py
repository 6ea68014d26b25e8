"""``rollonce baselines``: every baseline that has a name."""

from __future__ import annotations

from dataclasses import dataclass

from rollonce.baselines.catalogue import ALIASES, CATALOGUE
from rollonce.baselines.own import offered_baselines
from rollonce.commands.terminal import Flag, print_json_document, results_console
from rollonce.reports.catalogue import make_catalogue_rows, print_catalogue

HELP = """\
Every baseline that has a name: the name that configurations and specifications
call it, its class in rollonce.baselines, its formula and where it comes from.
One name means the same baseline on the board, as an arm of a training run and
in Python.

<name> sees the batch alone; <name>_window sees the newest 512 rows of earlier
steps as well, <name>_window_<rows> another number of them;
norm_weighted_<name> weights the other rewards by how large the gradients of
such rollouts typically are, and needs log-probabilities. opo weights them by
response length. Arms of a comparison can also be oracle, otb and otb_batch (the
optimal token baseline, of the task's group or of the batch). Baselines that
installed packages offer are listed too; your own code goes by module:name
(docs/own_kernel.md).

Examples:
  rollonce baselines
  rollonce baselines --json
"""


@dataclass
class Args:
    """Options of ``rollonce baselines``."""

    json: Flag = False
    """Print JSON and nothing else."""


def run(args: Args) -> int:
    offered = {name: entry.value for name, entry in offered_baselines().items()}
    if args.json:
        print_json_document({"baselines": make_catalogue_rows(CATALOGUE), "aliases": ALIASES, "offered": offered})
    else:
        print_catalogue(results_console(), CATALOGUE, ALIASES, offered)
    return 0
