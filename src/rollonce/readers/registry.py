"""The list of formats, in the order in which they are tried: those that are recognised by more come first, the generic
one last."""

from __future__ import annotations

from rollonce.errors import InputError
from rollonce.readers.base import Format
from rollonce.readers.evalplus import AutomationBench, EvalPlus, HumanEval
from rollonce.readers.generic import Generic
from rollonce.readers.inspect_ai import Inspect
from rollonce.readers.lm_eval import LmEval
from rollonce.readers.nemo_gym import NemoGym
from rollonce.readers.nemo_rl import NemoRl
from rollonce.readers.probe import Probe
from rollonce.readers.skyrl import SkyRl
from rollonce.readers.tau2 import Tau2
from rollonce.readers.tinker import TinkerEvals, TinkerTraining
from rollonce.readers.trl import Trl
from rollonce.readers.verifiers import PrimeRl, Verifiers, VerifiersLegacy
from rollonce.readers.verl import Verl

FORMATS: tuple[type[Format], ...] = (
    Verl,
    Trl,
    PrimeRl,
    Verifiers,
    VerifiersLegacy,
    TinkerEvals,
    TinkerTraining,
    Inspect,
    EvalPlus,
    HumanEval,
    AutomationBench,
    Tau2,
    SkyRl,
    NemoRl,
    NemoGym,
    LmEval,
    Generic,
)


def find_format_by_name(name: str) -> type[Format]:
    """The format of that name.

    Raises:
        InputError: if there is none, with the names there are.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    raise InputError(f"no format {name!r}; the formats are {', '.join(f.name for f in FORMATS)}")


def recognise_format(probe: Probe) -> type[Format] | None:
    """The first format that takes the file for its own."""
    if probe.problem is not None:
        return None
    for known in FORMATS:
        try:
            if known.is_file_of_format(probe):
                return known
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            continue
    return None
