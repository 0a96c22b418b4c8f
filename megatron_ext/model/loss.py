"""Cross-entropy over logits that are split by vocabulary, with label smoothing, padding ids left out.

megatron-core's own function smooths over the local part of the vocabulary only, so its loss depends on the
tensor-parallel size, and it gives probability to padding ids, so its loss depends on the padding.

Shapes: T any leading shape of tokens, V local part of the padded vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def vocab_parallel_cross_entropy(
    logits_TV: torch.Tensor, labels_T: torch.Tensor, vocab_size: int, label_smoothing: float, group: Any
) -> torch.Tensor:
    """-> loss_T in fp32, the same on every rank of `group`: -log p(label), or with smoothing e
    (1 - e) times that plus e times the mean of -log p over all `vocab_size` ids (Szegedy et al. 2016).

    labels_T hold ids below vocab_size; rank r of the group holds the logits of ids [r V, (r + 1) V).
    Communication: forward two all-reduces over the group (maximum; three sums at once), backward none.
    """
    return _CrossEntropy.apply(logits_TV, labels_T, vocab_size, label_smoothing, group)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_TV: torch.Tensor, labels_T: torch.Tensor, vocab_size: int, smoothing: float, group: Any
    ) -> torch.Tensor:
        first = group.rank() * logits_TV.shape[-1]
        ids = max(0, min(logits_TV.shape[-1], vocab_size - first))  # the rest is padding
        shifted_TV = logits_TV[..., :ids].float()
        greatest_T = shifted_TV.amax(-1) if ids else logits_TV.new_full(labels_T.shape, -torch.inf, dtype=torch.float32)
        dist.all_reduce(greatest_T, op=dist.ReduceOp.MAX, group=group)
        shifted_TV = shifted_TV - greatest_T[..., None]

        local_T = labels_T - first
        mine_T = (local_T >= 0) & (local_T < ids)
        local_T = local_T.clamp(0, max(ids - 1, 0))
        chosen_T = (
            torch.where(mine_T, shifted_TV.gather(-1, local_T[..., None])[..., 0], 0.0) if ids else greatest_T * 0
        )
        total_T = shifted_TV.sum(-1) if smoothing else chosen_T
        exp_TV = shifted_TV.exp_()
        sums = torch.stack([exp_TV.sum(-1), chosen_T, total_T])
        dist.all_reduce(sums, group=group)
        normaliser_T, chosen_T, total_T = sums.unbind(0)

        ctx.save_for_backward(exp_TV.div_(normaliser_T[..., None]), local_T, mine_T)
        ctx.vocab_size, ctx.smoothing, ctx.padding = vocab_size, smoothing, logits_TV.shape[-1] - ids
        ctx.dtype = logits_TV.dtype
        log_T = normaliser_T.log()
        loss_T = log_T - chosen_T
        return loss_T if not smoothing else (1 - smoothing) * loss_T + smoothing * (log_T - total_T / vocab_size)

    @staticmethod
    def backward(ctx: Any, grad_T: torch.Tensor) -> Any:
        softmax_TV, local_T, mine_T = ctx.saved_tensors
        grad_TV = softmax_TV - ctx.smoothing / ctx.vocab_size if ctx.smoothing else softmax_TV.clone()
        if grad_TV.shape[-1]:
            hit_T = mine_T.to(grad_TV.dtype) * (1 - ctx.smoothing)
            grad_TV.scatter_add_(-1, local_T[..., None], -hit_T[..., None])
        grad_TV.mul_(grad_T[..., None])
        return torch.nn.functional.pad(grad_TV, (0, ctx.padding)).to(ctx.dtype), None, None, None, None
