"""The advantage path of our own loop on a service: the datums that `rollonce.policies.tinker_policy` would send, for
the preflight."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from rollonce.baselines import Baseline
from rollonce.experiments.datums import Datum, FixedBatch
from rollonce.experiments.engines.cookbook_path import read_datums
from rollonce.experiments.preflight import OwnPath, as_batch


class ServicePath(OwnPath):
    """The mean over tokens is in the advantages that are sent, since a service adds up."""

    sent_scaled = True

    def ours(self, baseline: Baseline, batch: FixedBatch) -> list[Datum]:
        """See `rollonce.experiments.preflight.Path`."""
        from rollonce.policies.objective import loss_weights
        from rollonce.policies.samples import to_samples
        from rollonce.policies.tinker_policy import TinkerPolicy

        nobody = SimpleNamespace(pad_token_id=0, eos_token_id=0)
        policy = TinkerPolicy(SimpleNamespace(name="none"), "none", nobody, nobody, loss="importance_sampling")  # type: ignore[arg-type]
        n = len(batch.prompts)
        samples = to_samples(
            batch.prompts,
            [""] * n,
            batch.prompt_tokens,
            batch.response_tokens,
            batch.old_log_probs,
            [False] * n,
            1.0,
            0,
        )
        advantages_B = torch.from_numpy(baseline.advantages(as_batch(batch)))
        weights_BT = loss_weights(samples.response_mask_BT, "token-mean").double()
        return read_datums(policy.datums(samples, weights_BT * advantages_B[:, None]))
