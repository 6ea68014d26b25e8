"""A step of the real verl trainer on a CPU: its `_step_once`, queue, padding, old log-probs, advantages, loss; the
policy is a table.

What it replaces, because verl has no CPU version of it: generation (vLLM or SGLang only) and the FSDP worker
(registered for CUDA and NPU devices only). Used by test_verl.py.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

VOCABULARY, LENGTH = 5, 2


class Policy(torch.nn.Module):
    """Logits by prompt; a task is solved as far as its tokens are the right one."""

    def __init__(self, n_prompts):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(n_prompts, VOCABULARY))

    def log_probs(self, prompts, responses):
        return torch.log_softmax(self.logits[prompts], -1).gather(-1, responses)


class Workers:
    """What the trainer calls on its worker group, with verl's own loss inside."""

    def __init__(self, queue, policy, config):
        from verl.trainer.ppo.core_algos import get_policy_loss_fn
        from verl.utils.config import omega_conf_to_dataclass

        self._dispatch_info = {"actor": [0]}
        self.queue, self.policy, self.loss = queue, policy, get_policy_loss_fn("vanilla")
        self.config = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.optimiser, self.gradients, self.seen = torch.optim.SGD(policy.parameters(), lr=12.0), [], []

    def _get(self, batch, *fields):
        return self.queue.kv_batch_get(batch.keys, partition_id=batch.partition_id, select_fields=list(fields))

    def compute_log_prob(self, batch):
        """Of every token, as verl's engines leave it: shifted by one, prompt included."""
        data = self._get(batch, "prompts", "responses")
        rows = []
        for prompt, response in zip(data["prompts"].unbind(), data["responses"].unbind(), strict=True):
            row = torch.zeros(len(prompt) + len(response))
            with torch.no_grad():
                row[len(prompt) - 1 : -1] = self.policy.log_probs(prompt[-1].expand(len(response)), response[:, None])[
                    :, 0
                ]
            rows.append(row)
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        from tensordict import TensorDict

        fields = TensorDict({"log_probs": nested, "entropy": nested.clone()}, batch_size=len(batch))
        self.queue.kv_batch_put(batch.keys, partition_id=batch.partition_id, fields=fields)
        return batch

    def update_actor(self, batch):
        data = self._get(batch, "prompts", "responses", "response_mask", "old_log_probs", "advantages")
        self.seen.append([a.tolist() for a in data["advantages"].unbind()])
        prompts = torch.stack([p[-1] for p in data["prompts"].unbind()])
        pad = lambda name: torch.nested.to_padded_tensor(data[name], 0)  # noqa: E731
        log_prob = self.policy.log_probs(
            prompts[:, None].expand(-1, pad("responses").shape[1]), pad("responses")[..., None]
        )[..., 0]
        loss, _ = self.loss(
            pad("old_log_probs"), log_prob, pad("advantages"), pad("response_mask").float(), "token-mean", self.config
        )
        self.optimiser.zero_grad()
        loss.backward()
        self.gradients.append(self.policy.logits.grad.clone())
        self.optimiser.step()
        return {"metrics": {"pg_loss": [loss.item()], "mfu": [0.0]}}


class Sampler:
    """In the place of verl's replay buffer: one rollout of each of a few prompts, from the policy, into the queue."""

    def __init__(self, queue, policy, prompts, seed):
        self.queue, self.policy, self.prompts = queue, policy, prompts
        self.rng, self.steps = np.random.default_rng(seed), 0

    def sample(self, global_steps, partition_id, batch_size):
        from transfer_queue import KVBatchMeta
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        self.steps += 1
        self.at = self.rng.choice(len(self.prompts), batch_size, replace=False)
        chances = torch.softmax(self.policy.logits.detach(), -1).double().numpy()
        fields, keys, self.rewards, self.responses = [], [], [], []
        for i, k in enumerate(self.at):
            response = self.rng.choice(VOCABULARY, LENGTH, p=chances[k] / chances[k].sum())
            reward = float((response == k % VOCABULARY).mean())
            uid = f"step{self.steps}row{i}"
            keys.append(f"{uid}_0_0")
            self.rewards.append(reward)
            self.responses.append(response)
            fields.append(
                {
                    "uid": uid,
                    "raw_prompt": [{"role": "user", "content": self.prompts[k]}],
                    "prompts": torch.tensor([0, int(k)]),
                    "responses": torch.tensor(response),
                    "input_ids": torch.tensor([0, int(k), *response]),
                    "attention_mask": torch.ones(2 + LENGTH, dtype=torch.int64),
                    "position_ids": torch.arange(2 + LENGTH),
                    "num_turns": 0,
                    "response_mask": torch.ones(LENGTH, dtype=torch.int64),
                    "loss_mask": torch.ones(LENGTH, dtype=torch.int64),
                    "rm_scores": torch.tensor([0.0] * (LENGTH - 1) + [reward]),
                    "rollout_log_probs": torch.tensor(np.log(chances[k][response]), dtype=torch.float32),
                }
            )
        tags = [{"seq_len": 2 + LENGTH, "prompt_len": 2, "response_len": LENGTH} for _ in keys]
        self.queue.kv_batch_put(keys, partition_id=partition_id, fields=list_of_dict_to_tensordict(fields), tags=tags)
        return KVBatchMeta(keys=keys, tags=tags, partition_id=partition_id), {}


def equip(trainer, queue, prompts, seed=0):
    """Give a trainer that was made by verl's own `__init__` what its `_setup` would have started on GPUs."""
    policy = Policy(len(prompts))
    trainer.actor_rollout_wg = Workers(queue, policy, trainer.config)
    trainer.replay_buffer = Sampler(queue, policy, prompts, seed)
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])  # rewards come with the rollouts
    trainer.tokenizer = SimpleNamespace(eos_token_id=1, pad_token_id=0)
    trainer.checkpoint_manager = SimpleNamespace(sleep_replicas=lambda: None)
    trainer.curr_step_profile, trainer.global_steps, trainer.distillation_config = False, 1, None
    return trainer


class LocalQueue:
    """TransferQueue in this process, for machines too busy for Ray to start (ROLLONCE_LOCAL_QUEUE=1): the same calls,
    rows by key."""

    def __init__(self):
        self.rows = {}

    def kv_batch_put(self, keys, partition_id, fields=None, tags=None):
        from transfer_queue import KVBatchMeta

        for i, key in enumerate(keys):
            self.rows.setdefault(key, {}).update({name: fields[name][i] for name in fields.keys()})  # noqa: SIM118
        return KVBatchMeta(keys=list(keys), tags=tags or [{} for _ in keys], partition_id=partition_id)

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        names = select_fields or list(self.rows[keys[0]])
        return list_of_dict_to_tensordict([{n: self.rows[k][n] for n in names if n in self.rows[k]} for k in keys])
