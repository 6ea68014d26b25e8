"""The kernels of self-tuning: covariances between prompts of any kind, without labels."""

from __future__ import annotations

from rollonce.features import PromptStatistics, Tfidf
from rollonce.kernels import Cosine, Exponential, Kernel, Product, Rbf


def make_kernels_and_experts() -> tuple[list[Kernel], list[list[int]]]:
    """The kernels that work on any prompts without labels, and the experts (positions of their kernels)."""

    def character_tfidf() -> Tfidf:
        return Tfidf(analyzer="char", ngrams=(2, 5), sublinear=True, max_features=20_000)

    def skeleton_tfidf() -> Tfidf:
        return Tfidf(ngrams=(1, 3), sublinear=True, skeleton=True, max_features=20_000)

    def single_word_tfidf() -> Tfidf:
        return Tfidf(sublinear=True, max_features=20_000)

    def kernel_on_ranks(l: float) -> Exponential:
        return Exponential(PromptStatistics(scale="rank"), l, "cityblock")

    def text_and_rank_product(a: float) -> Product:
        text = [
            Exponential(character_tfidf(), 1 / (0.7 * a)),
            Exponential(skeleton_tfidf(), 1 / (0.15 * a)),
            Exponential(single_word_tfidf(), 1 / (0.15 * a)),
        ]
        return Product([*text, kernel_on_ranks(1 / a)])

    named: dict[str, Kernel] = {
        "char": Cosine(character_tfidf()),
        "char_near": Exponential(character_tfidf()),
        "skeleton": Cosine(skeleton_tfidf()),
        "length": Rbf(PromptStatistics(["characters"]), 1.0),
        "statistics": Rbf(PromptStatistics(), 1.0),
        "ranks": kernel_on_ranks(1.0),
        "char_and_ranks": Product([Exponential(character_tfidf()), kernel_on_ranks(1.0)]),
        "wide": text_and_rank_product(0.4),
        "middle": text_and_rank_product(1.2),
        "narrow": text_and_rank_product(4.0),
        "word": Cosine(single_word_tfidf()),
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


__all__ = ["make_kernels_and_experts"]
