"""Learning rate as a pure function of the step, so that it is exact on resume and follows the configuration.

Nothing of it is kept in a checkpoint: a run resumed with another optim.lr uses that one from its next step on.
"""

from __future__ import annotations

import math

from megatron_ext.config.schema import Optim, Schedule


def learning_rate(step: int, optim: Optim, steps: int) -> float:
    """Rate of update number `step` (from 0) of `steps`.

    Warm-up is linear over warmup_fraction of the steps and reaches lr; what follows ends at min_lr on the last step:
    cosine (Loshchilov & Hutter 2017), linear, or wsd (constant, then linear over decay_fraction; Hu et al. 2024).
    """
    warmup = _share(optim.warmup_fraction, steps)
    if step < warmup:
        return optim.lr * (step + 1) / warmup
    if optim.schedule == Schedule.constant:
        return optim.lr
    start = warmup
    if optim.schedule == Schedule.wsd:
        start = max(warmup, steps - _share(optim.decay_fraction, steps))
        if step < start:
            return optim.lr
    progress = min((step - start + 1) / max(steps - start, 1), 1.0)
    falling = 0.5 * (1 + math.cos(math.pi * progress)) if optim.schedule == Schedule.cosine else 1 - progress
    return optim.min_lr + (optim.lr - optim.min_lr) * falling


def _share(fraction: float, steps: int) -> int:
    """Rounded up; 0.07 x 100 is 7.000000000000001 in floating point, and 7 steps."""
    return math.ceil(fraction * steps - 1e-9)
