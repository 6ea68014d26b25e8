#!/usr/bin/env bash
# verl with one rollout per task and a tuned baseline: GSM8K, Qwen2.5-0.5B, one node. Needs a GPU, verl[vllm] and rollonce in one environment.
#   rollonce tune rollouts.jsonl --out baseline.json      # once, on rollouts you have
#   examples/verl_gs1.sh baseline.json [more settings of verl]
# verl finds rollonce by itself (entry point verl.plugins); the two lines that matter are marked. The history lies in its checkpoints.
set -euo pipefail
export ROLLONCE_BASELINE=$(realpath "${1:?the file that rollonce tune wrote}") # <- the prompts are fetched for it
shift
data=${DATA:-$HOME/data/gsm8k}
python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=gs1 `# <- and it judges; batch_loo needs no file` \
  actor_rollout_ref.rollout.n=1 \
  data.train_files="$data/train.parquet" data.val_files="$data/test.parquet" \
  data.train_batch_size=128 data.max_prompt_length=512 data.max_response_length=512 \
  actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}" \
  actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=128 \
  actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
  trainer.n_gpus_per_node="${GPUS:-1}" trainer.nnodes=1 trainer.total_epochs=1 trainer.logger='["console"]' "$@"
