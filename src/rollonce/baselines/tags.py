"""What a baseline promises, and what a prediction of it costs."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Cost(enum.IntEnum):
    """What one prediction with a window of M visible rows costs, so that callers can spend their batches by it.

    ``TABLE``: weights are looked up or computed pair by pair; thousands of batches take seconds, whatever the window.
    ``SOLVE``: a linear system over all visible rows, ``O(M^3)``: cheap for a batch alone, seconds for hundreds of
    batches with a window of 512. Batches that see the same rows share one solve. ``MODEL_FIT``: a model is trained for
    each history given to `predict`: about a tenth of a second each at best. They are ordered; a mixture costs what its
    dearest part does.
    """

    TABLE = 0
    SOLVE = 1
    MODEL_FIT = 2


@dataclass(frozen=True)
class Tags:
    """What a baseline promises; `check_baseline` tests each.

    Attributes:
        leave_one_out: Changing ``r_i``, or rollout i's response, never changes ``b_i``, through any fit as well.
        shift_equivariant: Adding c to all rewards adds c to b.
        scale_equivariant: Multiplying all rewards by c > 0 multiplies b by c.
        neutral: Identical prompts give the leave-one-out mean of whatever rows were visible.
        self_inclusive: Includes the own reward by definition (FlashREINFORCE, REINFORCE++, centred GRPO); scored
            through its twin.
        needs_groups: Needs several rollouts of a task in the batch.
        needs_repeats: Needs the same task in earlier steps (trackers) or extra rollouts (oracle).
        needs_history: Gives only a fallback before the first `observe`.
        bounded_rewards: Rewards must lie in [0, 1].
        windowed: Uses rows of earlier steps too.
        uses_log_probs: Reads `Batch.log_probs_B` of other rollouts; without them it works in a plainer form.
        uses_lengths: Reads `Batch.response_lengths_B`, likewise: of other rollouts only, unless it is self-inclusive.
        cost: What a prediction costs, see `Cost`.
    """

    leave_one_out: bool = True
    shift_equivariant: bool = True
    scale_equivariant: bool = True
    neutral: bool = True
    self_inclusive: bool = False
    needs_groups: bool = False
    needs_repeats: bool = False
    needs_history: bool = False
    bounded_rewards: bool = False
    windowed: bool = False
    uses_log_probs: bool = False
    uses_lengths: bool = False
    cost: Cost = Cost.TABLE
