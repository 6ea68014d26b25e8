"""Tasks whose answers are long: eight sentences about a topic, with two words in them that fit it more or less.

python studies/smollm2/make_tasks.py > studies/smollm2/long_tasks.jsonl      # 64 tasks, 8 topics x 8 pairs

Graded by whether the two words stand in the answer as they were given (letter case aside), as `contains` of
`rollonce.tasks` does it. A first form, three sentences and one word, had a mean reward of 0.61 and answers of 55 tokens.
"""

from __future__ import annotations

import json

TOPICS = {
    "beach": ["sand", "shell", "towel", "lantern", "violin", "granite", "ledger", "quartz"],
    "kitchen": ["soup", "spoon", "candle", "pepper", "tractor", "anchor", "velvet", "quiver"],
    "forest": ["leaf", "owl", "moss", "bridge", "mirror", "copper", "ticket", "zither"],
    "school": ["book", "chalk", "bell", "garden", "magnet", "turnip", "harbor", "walnut"],
    "winter": ["snow", "scarf", "chimney", "sledge", "pencil", "orchid", "saddle", "trumpet"],
    "train": ["station", "window", "whistle", "suitcase", "pumpkin", "feather", "marble", "locket"],
    "market": ["apple", "basket", "cheese", "carpet", "pigeon", "helmet", "compass", "bonnet"],
    "night": ["moon", "star", "blanket", "cricket", "ladder", "barrel", "cactus", "thimble"],
}


def main() -> None:
    """One task per line: prompt, reference, grader, family (the topic), level (how far the first word is from it)."""
    for topic, words in TOPICS.items():
        for level, word in enumerate(words):
            both = f"{word} and {words[(level + 3) % len(words)]}"
            prompt = f'Write a story of eight sentences about this: {topic}. It must say "{both}".'
            task = {"prompt": prompt, "reference": both, "grader": "contains", "family": topic, "level": level}
            print(json.dumps(task))


if __name__ == "__main__":
    main()
