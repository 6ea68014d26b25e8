"""The stages in their order, from pins to verdict: each is a function of the run so far, and `run_experiment` walks
them."""

from __future__ import annotations

from typing import NamedTuple

from rollonce.experiments.run import ExperimentRun, Stopped
from rollonce.experiments.stages.activation_gate import check_gate_online, sample_calibration, score_gate_offline
from rollonce.experiments.stages.before_spending import audit_experiment_data, check_correctness, record_resolved_pins
from rollonce.experiments.stages.clients import compare_fresh_clients, probe_every_arm
from rollonce.experiments.stages.training import project_feasibility, time_pilot_training, train_registered_arm
from rollonce.experiments.stages.verdict import evaluate_trained_arm, reach_final_decision, select_best_arms


class RunOutcome(NamedTuple):
    """How it ended: exit code 0 with a verdict, 1 with a stage that failed; the sentence; the stage that said it."""

    code: int
    sentence: str
    stage: str


def run_experiment(run: ExperimentRun) -> RunOutcome:
    """Walk the stages, from wherever the directory's records say.

    Raises:
        InputError: something that the user has to mend; the run goes on from there afterwards.
    """
    try:
        pins = record_resolved_pins(run)
        audit = audit_experiment_data(run)
        check_correctness(run, pins, audit)
        restoration = compare_fresh_clients(run, audit)
        probe = probe_every_arm(run, restoration)
        gate = score_gate_offline(run, sample_calibration(run, audit, probe))
        pilots = time_pilot_training(run, gate, restoration)
        online = check_gate_online(run, pilots)
        feasible = project_feasibility(run, pilots, online)
        arms = {arm.name: train_registered_arm(run, arm, feasible, restoration) for arm in run.loaded.spec.arms}
        chosen = select_best_arms(run, arms)
        graded = {name: evaluate_trained_arm(run, name, arms[name]) for name in (chosen or arms)}
        decision = reach_final_decision(run, graded, chosen)
    except Stopped as stop:
        return RunOutcome(1, str(stop), stop.record.stage)
    return RunOutcome(0, decision.data["sentence"], "decision")
