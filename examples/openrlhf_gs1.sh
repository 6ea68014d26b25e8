#!/usr/bin/env bash
# OpenRLHF with one rollout per prompt and a tuned baseline, on one node of 8 GPUs. Needs openrlhf[vllm] and rollonce in one environment.
#   rollonce tune rollouts.jsonl --out baseline.json
#   examples/openrlhf_gs1.sh baseline.json reward_func.py [more flags of OpenRLHF]
# Its own command line behind ours; the estimator asked for is the one whose batch mean the baseline replaces.
set -euo pipefail
baseline=${1:?the file that rollonce tune wrote} reward=${2:?a reward function, as --reward.remote_url takes it}
shift 2
python3 -m rollonce.integrations.openrlhf "$baseline" \
  --algo.advantage.estimator flash_reinforce \
  --rollout.n_samples_per_prompt 1 --rollout.batch_size 512 --train.batch_size 512 --rollout.micro_batch_size 16 \
  --reward.remote_url "$reward" \
  --actor.model_name_or_path "${MODEL:-Qwen/Qwen2.5-1.5B-Instruct}" \
  --data.prompt_dataset "${DATA:-openai/gsm8k}" --data.input_key question --data.apply_chat_template \
  --actor.num_nodes 1 --actor.num_gpus_per_node 8 --vllm.num_engines 8 --vllm.tensor_parallel_size 1 --train.colocate_all \
  --algo.kl.init_coef 0 --ckpt.path ./ckpt/gs1 "$@"
