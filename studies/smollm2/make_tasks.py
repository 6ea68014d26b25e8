"""Tasks whose answers are long: eight sentences about a topic, with a word in them that fits it more or less.

python studies/smollm2/make_tasks.py > studies/smollm2/long_tasks.jsonl      # 64 tasks, 8 topics x 8 words

Graded by whether the word stands in the answer (letter case aside), as `contains` of `rollonce.tasks` does it; an
answer that is cut off earns 0. Of two other forms, three sentences with one word were too short and too easy (55
tokens, 0.61) and eight sentences with two words too hard (156 tokens, 0.06).
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
    """One task per line: prompt, reference, grader, family (the topic), level (how far the word is from it)."""
    for topic, words in TOPICS.items():
        for level, word in enumerate(words):
            prompt = f'Write a story of eight sentences about this: {topic}. Use the word "{word}" somewhere.'
            task = {"prompt": prompt, "reference": word, "grader": "contains", "family": topic, "level": level}
            print(json.dumps(task))


if __name__ == "__main__":
    main()
