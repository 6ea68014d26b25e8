"""One list of named baselines: the rule of windows, the names from before it, and who reads the list."""

import tomllib
from pathlib import Path

import pytest

from rollonce.baselines import (
    Baseline,
    BoostedTrees,
    Constant,
    FlashReinforce,
    Grpo,
    KernelBaseline,
    Kriging,
    LeaveOneOut,
    NoBaseline,
    ReinforcePlusPlus,
    Ridge,
    Rloo,
    SelfTuning,
    Tracker,
    family_mean_baseline,
    named_baseline,
    published_length_buckets,
    published_tfidf,
)
from rollonce.baselines.catalogue import ALIASES, CATALOGUE, default_board_baselines, known_baseline_names
from rollonce.component import registered_types
from rollonce.errors import InputError
from rollonce.features import Tfidf
from rollonce.kernels import Buckets, Nearest, Rbf, Softmax
from rollonce.rollouts import Tasks

ROOT = Path(__file__).parents[2]

# What TOML files, kept runs and specifications have meant by these names since before there was a catalogue.
BEFORE = {
    "none": NoBaseline(),
    "constant": Constant(0.5),
    "flashreinforce": FlashReinforce(),
    "batch_mean": FlashReinforce(),
    "loo": LeaveOneOut(),
    "loo_mean": LeaveOneOut(),
    "loo_window": LeaveOneOut(window=512),
    "reinforce++": ReinforcePlusPlus(),
    "grpo": Grpo(),
    "group_mean": Grpo(),
    "grpo_std": Grpo(scale="group"),
    "rloo": Rloo(),
    "gs1_tfidf": KernelBaseline(Softmax(temperature=0.1)),
    "tfidf_kernel_loo_T0.1": KernelBaseline(Softmax(temperature=0.1)),
    "tfidf_kernel_loo_T3": KernelBaseline(Softmax(temperature=3.0)),
    "gs1_buckets": KernelBaseline(Buckets(n=5), window=512),
    "length_buckets_loo": KernelBaseline(Buckets(n=5)),
    "gs1_family": family_mean_baseline("family"),
    "gs1_kriging": Kriging(window=128),
    "gs1_self_tuning": SelfTuning(window=128, max_rows=256, refit_every=32),
    "critic_prompt": Ridge(window=512),
    "critic_trees": BoostedTrees(window=2048),
    "tracker": Tracker(),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_name_means_what_it_meant(name):
    assert named_baseline(name).config() == BEFORE[name].config()


def test_a_name_is_the_batch_alone_and_window_says_how_many_rows_of_the_past():
    assert named_baseline("length_buckets").config() == KernelBaseline(Buckets()).config()
    assert named_baseline("length_buckets_window").config() == published_length_buckets().config()
    assert named_baseline("tfidf_window_64").config() == published_tfidf(64).config()
    assert named_baseline("ridge_window_32").config() == Ridge(window=32).config()
    for entry in CATALOGUE:
        made = named_baseline(entry.name)
        rows = getattr(made, "window", 0)
        assert (rows > 0) == (entry.forms == "history"), entry.name
        if entry.forms == "batch":
            with pytest.raises(InputError, match="has no window"):
                named_baseline(f"{entry.name}_window")
        else:
            assert named_baseline(f"{entry.name}_window").window == 512
            assert named_baseline(f"{entry.name}_window_7").window == 7


@pytest.mark.parametrize("name", ["gs1_magic", "loo_windows", "loo_window_", "loo_window_-3", "_window", ""])
def test_a_name_that_means_nothing_is_refused_with_those_that_do(name):
    with pytest.raises(InputError, match=r"there is no baseline .*flashreinforce, .*gs1_tfidf, .*<name>_window_<rows>"):
        named_baseline(name)


def test_names_are_told_apart_and_aliases_lead_to_them():
    names = known_baseline_names()
    assert len(set(names)) == len(names)
    for name in ALIASES.values():
        assert isinstance(named_baseline(name), Baseline)
    labels = [(e.label_in_tables, e.make(0).config() if e.forms != "history" else "") for e in CATALOGUE]
    assert len({str(pair) for pair in labels}) == len(labels)
    for entry in CATALOGUE:
        assert entry.formula
        assert len(entry.short) <= 12


def test_the_published_examples():
    assert [(e.name, e.published_example) for e in CATALOGUE if e.published_example] == [
        ("length_buckets", "history"),
        ("tfidf", "batch"),
    ]


def test_every_baseline_of_ours_is_in_the_list():
    """A blend is made of others, a function is a user's; there is no one that a name could mean."""
    ours = {
        cls
        for cls in registered_types().values()
        if issubclass(cls, Baseline) and cls.__module__.startswith("rollonce.baselines")
    }
    assert {cls.type for cls in ours - {entry.baseline_class for entry in CATALOGUE}} == {"blend", "function"}


def test_the_board():
    tasks = Tasks(["a", "b"], columns={"family": ["x", "y"], "level": [1, 2]})
    characters = Tfidf(analyzer="char_wb", ngrams=(3, 5))
    want = [
        *(NoBaseline(), Constant(), FlashReinforce(), ReinforcePlusPlus(), LeaveOneOut(), LeaveOneOut(window=40)),
        *(KernelBaseline(Buckets()), KernelBaseline(Buckets(), window=40), published_tfidf(), published_tfidf(40)),
        KernelBaseline(shrinkage=0.5),
        KernelBaseline(Softmax(Tfidf(sublinear=True), temperature=0.2)),
        KernelBaseline(Softmax(characters, temperature=0.1)),
        *(KernelBaseline(Rbf()), KernelBaseline(Nearest(k=8))),
        *(
            family_mean_baseline("family"),
            family_mean_baseline("family", 40),
            family_mean_baseline("level"),
            family_mean_baseline("level", 40),
        ),
        *(Kriging(), Kriging(window=40), Ridge(window=40), BoostedTrees(window=40)),
        *(SelfTuning(), SelfTuning(window=40), Tracker()),
        named_baseline("oracle"),
    ]
    assert [b.config() for b in default_board_baselines(tasks, 40)] == [b.config() for b in want]
    alone = [b.config() for b in want if not getattr(b, "window", 0)]
    assert [b.config() for b in default_board_baselines(tasks, 0)] == alone


def test_every_name_in_the_repositorys_configurations_means_something():
    def names(part):
        if isinstance(part, dict):
            for key, value in part.items():
                if key == "baseline" and isinstance(value, str) and not value.endswith(".json"):
                    yield value
                yield from names(value)

    files = [p for d in ("examples", "studies", "benchmarks", "docs") for p in (ROOT / d).rglob("*.toml")]
    used = {name for p in files for name in names(tomllib.loads(p.read_text(encoding="utf-8")))}
    assert {"flashreinforce", "gs1_tfidf"} <= used
    for name in used:
        assert isinstance(named_baseline(name), Baseline)
