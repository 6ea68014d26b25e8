"""Safeguards that a specification leaves off, or opens so wide that they guard nothing: each a sentence on the first
page of the report. None of them is silent."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rollonce.errors import InputError
from rollonce.experiments.derive import READINGS, ExperimentSettings, read_registered_setting
from rollonce.experiments.loading import LoadedSpec
from rollonce.experiments.spec import GATE_METRICS, Spec, Tolerance

WIDEST_LOSS = Tolerance(atol=1e-4, rtol=1e-3)
WIDEST_GRADIENT = Tolerance(atol=1e-3, rtol=1e-2, min_cosine=0.999)
WIDEST_RESTORATION = 1e-2


def find_safeguards_switched_off(loaded: LoadedSpec, settings: ExperimentSettings) -> list[str]:
    """What this specification does without, in sentences."""
    spec = loaded.spec
    found = [
        *_gate_safeguards_off(spec),
        *_correctness_safeguards_off(spec),
        *_restoration_safeguards_off(spec, settings),
        *_audit_safeguards_off(spec),
        *_budget_safeguards_off(spec),
    ]
    found += _find_text_overrides(spec, settings)
    if spec.command and "tinker_cookbook.recipes" in spec.command and settings.engine != "cookbook":
        found.append(
            f"the registered command names tinker-cookbook's recipe; this run trains with our own loop (engine "
            f"{settings.engine})"
        )
    own = {k: v for k in ("training", "arm_training") if (v := getattr(spec.rollonce, k))}
    if own:
        found.append(f"our loop is given settings beside the registered ones: {json.dumps(own, sort_keys=True)}")
    if loaded.unknown:
        found.append(f"fields of the specification that this program does not know: {', '.join(loaded.unknown)}")
    return found


def _find_text_overrides(spec: Spec, settings: ExperimentSettings) -> Iterator[str]:
    """Settings of the section ``rollonce`` that are others than the registered text says."""
    for name in dict.fromkeys(reading.setting for reading in READINGS):
        if settings.origins[name].where != f"rollonce.{name}" or name == "engine":  # which has a sentence of its own
            continue
        try:
            read = read_registered_setting(spec, name)
        except InputError:  # a text that cannot be read is what the section is there for
            continue
        if read is not None and read[0] != getattr(settings, name):
            value, origin = read[0], read[1]
            yield (
                f"rollonce.{name} is {getattr(settings, name)}, where the registered text says {value} "
                f"({origin.where}: {origin.sentence!r})"
            )


def _gate_safeguards_off(spec: Spec) -> Iterator[str]:
    gate = spec.activation_gate
    if not gate.applicable:
        yield "the activation gate is switched off (activation_gate.applicable is false)"
        return
    parts = {GATE_METRICS[c.metric] for c in gate.checks}
    for part, what in (("offline", "on calibration rollouts"), ("pilot", "on the pilot's logs")):
        if part not in parts:
            yield f"the activation gate has no check {what}"


def _correctness_safeguards_off(spec: Spec) -> Iterator[str]:
    preflight = spec.correctness_preflight
    if not preflight.required:
        yield "the correctness preflight is switched off (correctness_preflight.required is false)"
    if not preflight.paths:
        yield "the correctness preflight has no path: the advantages that are trained with are compared with nothing"
    for path in preflight.paths:
        for name, limit in path.tolerances.model_dump().items():
            widest = WIDEST_GRADIENT if name.endswith("gradient") else WIDEST_LOSS
            wide = limit["atol"] > widest.atol or limit["rtol"] > widest.rtol
            if widest.min_cosine is not None:
                wide = wide or limit["min_cosine"] is None or limit["min_cosine"] < widest.min_cosine
            if wide:
                yield f"the tolerance {name} of {path.id} is so wide that a wrong advantage may pass ({limit})"


def _restoration_safeguards_off(spec: Spec, settings: ExperimentSettings) -> Iterator[str]:
    if not spec.restoration_preflight.applicable:
        yield "the restoration preflight is switched off (restoration_preflight.applicable is false)"
        return
    registered = {a.name for g in spec.restoration_preflight.groups for a in g.arms}
    if missing := [a.name for a in spec.arms if a.name not in registered]:
        yield f"no optimizer settings are registered for {', '.join(missing)}: Adam's are not compared with anything"
    if settings.restoration_atol > WIDEST_RESTORATION:
        yield f"the restoration preflight's atol of {settings.restoration_atol:g} tells no two policies apart"


def _audit_safeguards_off(spec: Spec) -> Iterator[str]:
    audit = spec.generation_audit
    for name, value in (("max_eval_overlaps", audit.max_eval_overlaps), ("max_label_errors", audit.max_label_errors)):
        if value > 0:
            yield f"the data audit lets {value} pass (generation_audit.{name})"


def _budget_safeguards_off(spec: Spec) -> Iterator[str]:
    if spec.budget.gpu_hours is None and spec.budget.max_wall_minutes is None:
        yield "no budget is registered: nothing ends a run that takes too long"
    if not spec.feasibility_required:
        yield "feasibility is not required: a run that does not fit its budget starts all the same"
