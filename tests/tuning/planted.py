"""Tables whose right answer is known."""

import numpy as np

from rollonce.rollouts import Rollouts

TOPICS = ["algebra", "geometry", "chess", "spelling", "logic", "sorting"]


def planted(n: int = 180, g: int = 6, seed: int = 0) -> Rollouts:
    """Success depends on the prompt's topic alone: 0.05 or 0.95."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(len(TOPICS), size=n)
    p = np.array([0.05, 0.95, 0.05, 0.95, 0.05, 0.95])[topic]
    prompts = [f"{TOPICS[t]} {TOPICS[t]} exercise number {rng.integers(10_000)} please" for t in topic]
    return Rollouts.from_groups((rng.random((n, g)) < p[:, None]).astype(float), prompts, name="planted")


def useless(n: int = 180, g: int = 6, seed: int = 0) -> Rollouts:
    """Prompts are random words and have nothing to do with success."""
    rng = np.random.default_rng(seed)
    p = rng.beta(1, 1, n)
    words = [f"w{i}" for i in range(60)]
    prompts = [f"{i} " + " ".join(rng.choice(words, rng.integers(5, 30))) for i in range(n)]
    return Rollouts.from_groups((rng.random((n, g)) < p[:, None]).astype(float), prompts, name="useless")
