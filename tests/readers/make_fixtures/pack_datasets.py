"""Pack the calibration sets for shipping: ``python pack_datasets.py SOURCE_DIR`` writes
src/rollonce/datasets/data/*.jsonl.gz.

Keeps task_id, prompt, rollout_id, reward and response_length (characters), in the order of the source; the same input
gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[3] / "src" / "rollonce" / "datasets" / "data"


def main() -> None:
    """Every ``*.jsonl.gz`` of the source directory."""
    for source in sorted(Path(sys.argv[1]).glob("*.jsonl.gz")):
        rows = []
        with gzip.open(source, "rt", encoding="utf-8") as f:
            for line in f:
                row = json.loads(line)
                reward = row["reward"]
                kept = {"task_id": row["task_id"], "prompt": row["prompt"], "rollout_id": row["rollout_id"]}
                kept["reward"] = int(reward) if reward == int(reward) else reward
                kept["response_length"] = row["response_length"] if "response_length" in row else len(row["response"])
                rows.append(json.dumps(kept, ensure_ascii=False, separators=(",", ":")))
        packed = gzip.compress(("\n".join(rows) + "\n").encode(), compresslevel=9, mtime=0)
        (HERE / source.name).write_bytes(packed)
        print(f"{source.name}: {len(rows)} rows, {len(packed):,} bytes")


if __name__ == "__main__":
    main()
