"""What is imported when: a trainer that uses a fitted baseline needs numpy and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollonce.baselines import Batch, KernelBaseline, Kriging, Tracker, published_length_buckets, published_tfidf
from rollonce.features import Tfidf
from rollonce.kernels import Nearest

HEAVY = ["torch", "sklearn", "numba", "optuna", "matplotlib", "scipy", "pyarrow", "transformers", "pandas"]
PROMPTS = ["add two and two", "add two and five", "prove the lemma", "Σίσυφος rolls 東京", "prove the claim", ""]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["rollonce", "rollonce.baselines", "rollonce.testing", "rollonce.reference"])
def test_importing_pulls_nothing_heavy(module):
    assert run(f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])").strip() == "[]"


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {blocked!r}:
            raise ImportError('blocked: ' + name)
sys.meta_path.insert(0, Blocker())
import numpy as np
from rollonce.baselines import Baseline, Batch
batch = Batch.of({prompts!r}, {rewards!r})
for path in {paths!r}:
    baseline = Baseline.load(path)
    print(baseline.predict(batch).baseline_B.tolist())
    baseline.observe(batch)
    print(baseline.predict(batch).baseline_B.tolist())
"""


def test_saved_baselines_predict_where_nothing_but_numpy_can_be_imported(tmp_path):
    rewards = [1.0, 0.5, 0.0, 0.25, 1.0, 0.0]
    made = [
        published_tfidf(),
        published_tfidf(window=12),
        Kriging(),
        Kriging(window=12),
        published_length_buckets(),
        KernelBaseline(Nearest(Tfidf(analyzer="char_wb", ngrams=(2, 4)), k=2)),
        Tracker(),
    ]
    paths, want = [], []
    for i, baseline in enumerate(made):
        baseline.fit(PROMPTS)
        paths.append(str(tmp_path / f"{i}.json"))
        baseline.save(paths[-1])
        batch = Batch.of(PROMPTS, rewards)
        want.append(str(baseline.predict(batch).baseline_B.tolist()))
        baseline.observe(batch)
        want.append(str(baseline.predict(batch).baseline_B.tolist()))
    out = run(
        BLOCKED.format(
            blocked=[*HEAVY, "orjson", "rich", "tyro", "pydantic", "joblib"],
            prompts=PROMPTS,
            rewards=rewards,
            paths=paths,
        )
    )
    assert out.splitlines() == want


@pytest.mark.parametrize("folder", ["features", "kernels", "baselines"])
def test_nothing_is_pickled(folder):
    import rollonce

    root = Path(rollonce.__file__).parent
    for file in [*(root / folder).glob("*.py"), root / "component.py"]:
        text = file.read_text(encoding="utf-8")
        for word in (
            "import pickle",
            "import joblib",
            "import dill",
            "import cloudpickle",
            "import marshal",
            "allow_pickle=True",
        ):
            assert word not in text, f"{file.name} has {word!r}"
