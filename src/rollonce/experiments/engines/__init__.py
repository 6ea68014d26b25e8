"""What trains and samples: our own loop (`loop`), on this machine or on a service, and tinker-cookbook's recipe
(`cookbook`)."""

from __future__ import annotations

from rollonce.experiments.derive import ExperimentSettings
from rollonce.experiments.engine import Engine
from rollonce.experiments.spec import Spec


def make_experiment_engine(spec: Spec, settings: ExperimentSettings) -> Engine:
    """The engine that the settings name: ``local``, ``tinker`` (our loop on a service) or ``cookbook`` (the stock
    recipe on a service)."""
    if settings.engine == "cookbook":
        from rollonce.experiments.engines.cookbook import CookbookEngine

        return CookbookEngine(spec, settings)
    from rollonce.experiments.engines.loop import LoopEngine

    return LoopEngine(spec, settings, service=settings.engine == "tinker")
