"""The advantage path of our own loop on a service: the datums that `rollonce.policies.tinker_policy` would send, for
the preflight."""

from __future__ import annotations

import torch

from rollonce.baselines import Baseline
from rollonce.experiments.datums import Datum, FixedBatch
from rollonce.experiments.engines.cookbook_path import read_tinker_datums
from rollonce.experiments.preflight import OwnPath, to_baseline_batch


class ServicePath(OwnPath):
    """The mean over tokens is in the advantages that are sent, since a service adds up."""

    sent_scaled = True

    def make_our_datums(self, baseline: Baseline, batch: FixedBatch) -> list[Datum]:
        """See `rollonce.experiments.preflight.AdvantagePath`."""
        from rollonce.policies.objective import token_loss_weights
        from rollonce.policies.samples import pad_rollouts_to_samples
        from rollonce.policies.tinker_datums import samples_to_datums

        n = len(batch.prompts)
        samples = pad_rollouts_to_samples(
            prompts=batch.prompts,
            texts=[""] * n,
            prompt_ids=batch.prompt_tokens,
            response_ids=batch.response_tokens,
            log_probs=batch.old_log_probs,
            truncated=[False] * n,
            temperature=1.0,
            pad_id=0,
        )
        advantages_B = torch.from_numpy(baseline.advantages(to_baseline_batch(batch)))
        weights_BT = token_loss_weights(samples.response_mask_BT, "token-mean").double()
        return read_tinker_datums(samples_to_datums(samples, weights_BT * advantages_B[:, None]))
