"""The kernels of self-tuning: covariances between prompts of any kind, without labels."""

from __future__ import annotations

from rollonce.features import PromptStatistics, Tfidf
from rollonce.kernels import Cosine, Exponential, Kernel, Product, Rbf


def default_kernels() -> tuple[list[Kernel], list[list[int]]]:
    """The kernels that work on any prompts without labels, and the experts (positions of their kernels)."""

    def char() -> Tfidf:
        return Tfidf(analyzer="char", ngrams=(2, 5), sublinear=True, max_features=20_000)

    def skeleton() -> Tfidf:
        return Tfidf(ngrams=(1, 3), sublinear=True, skeleton=True, max_features=20_000)

    def word() -> Tfidf:
        return Tfidf(sublinear=True, max_features=20_000)

    def ranks(l: float) -> Exponential:
        return Exponential(PromptStatistics(scale="rank"), l, "cityblock")

    def near(a: float) -> Product:
        text = [
            Exponential(char(), 1 / (0.7 * a)),
            Exponential(skeleton(), 1 / (0.15 * a)),
            Exponential(word(), 1 / (0.15 * a)),
        ]
        return Product([*text, ranks(1 / a)])

    named: dict[str, Kernel] = {
        "char": Cosine(char()),
        "char_near": Exponential(char()),
        "skeleton": Cosine(skeleton()),
        "length": Rbf(PromptStatistics(["characters"]), 1.0),
        "statistics": Rbf(PromptStatistics(), 1.0),
        "ranks": ranks(1.0),
        "char_and_ranks": Product([Exponential(char()), ranks(1.0)]),
        "wide": near(0.4),
        "middle": near(1.2),
        "narrow": near(4.0),
        "word": Cosine(word()),
    }
    # Words are in each: on long prompts with families by vocabulary, few rewards must suffice to find them.
    experts = [
        ["char_and_ranks", "word"],
        ["char", "skeleton", "length", "statistics", "word"],
        ["char_and_ranks", "char", "length", "word"],
        ["char_near", "ranks", "word"],
        ["wide", "middle", "narrow", "char", "length", "word"],
    ]
    order = list(named)
    return list(named.values()), [[order.index(k) for k in e] for e in experts]


__all__ = ["default_kernels"]
