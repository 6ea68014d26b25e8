"""Pack calibration sets for shipping: ``python pack_datasets.py SOURCE_DIR`` writes
src/rollonce/datasets/data/*.jsonl.gz, one for each ``*.jsonl.gz`` and ``*.jsonl`` there.

Keeps task_id, prompt, rollout_id, reward and response_length (characters), or, where rollouts carry their
log-probabilities, response_tokens, log_prob and the columns family and level, in the order of the source; the same
input gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[3] / "src" / "rollonce" / "datasets" / "data"


def main() -> None:
    """Every set of the source directory."""
    for source in sorted([*Path(sys.argv[1]).glob("*.jsonl.gz"), *Path(sys.argv[1]).glob("*.jsonl")]):
        rows = []
        with (gzip.open if source.suffix == ".gz" else open)(source, "rt", encoding="utf-8") as f:
            for line in f:
                row = json.loads(line)
                reward = row["reward"]
                kept = {"task_id": row["task_id"], "prompt": row["prompt"], "rollout_id": row["rollout_id"]}
                kept["reward"] = int(reward) if reward == int(reward) else reward
                if "log_prob" in row:
                    kept |= {
                        k: row[k] for k in ("response_tokens", "log_prob", "family", "level") if row.get(k, "") != ""
                    }
                else:
                    kept["response_length"] = row.get("response_length", len(row.get("response", "")))
                rows.append(json.dumps(kept, ensure_ascii=False, separators=(",", ":")))
        packed = gzip.compress(("\n".join(rows) + "\n").encode(), compresslevel=9, mtime=0)
        name = source.name.removesuffix(".gz") + ".gz"
        (HERE / name).write_bytes(packed)
        print(f"{name}: {len(rows)} rows, {len(packed):,} bytes")


if __name__ == "__main__":
    main()
