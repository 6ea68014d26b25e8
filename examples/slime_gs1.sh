#!/usr/bin/env bash
# slime (and miles) with one rollout per task and a tuned baseline. Not run here; what was: docs/integrations.md.
#   rollonce tune rollouts.jsonl --out baseline.json
#   examples/slime_gs1.sh baseline.json [your model, data and cluster flags, as in slime's own scripts]
# rollonce must be installed where the rollout manager runs (the head node). History: SAVE/rollonce.json.
set -euo pipefail
export ROLLONCE_BASELINE=$(realpath "${1:?the file that rollonce tune wrote}")
shift
args=(
  --advantage-estimator grpo       # hands on what it is given
  --n-samples-per-prompt 1
  --rollout-batch-size 128
  --global-batch-size 128
  --custom-reward-post-process-path rollonce.integrations.slime.reward_post_process
)                                  # and neither --normalize-advantages nor a nonzero-std filter: both are refused
if [[ -n "${DRY_RUN:-}" ]]; then echo "train.py ${args[*]} $*"; else python3 train.py "${args[@]}" "$@"; fi
