"""Token-choice top-k router whose auxiliary losses do not depend on the layout."""

from __future__ import annotations

from typing import Any, Optional

import torch
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler, z_loss_func
from megatron.core.transformer.moe.router import TopKRouter


class Router(TopKRouter):
    """megatron-core's TopKRouter, with the gradients of the auxiliary losses put right under TP + SP and CP.

    Gradients are divided by the tokens of the whole step. megatron-core 0.16.1 makes up for that by multiplying with
    the tokens of this rank; but the ranks of a tensor or context group each hold a part of one microbatch and their
    gradients are summed, so each must multiply with the tokens of them all. Otherwise the balancing loss is TP x CP
    times too weak.
    """

    def attach_and_log_load_balancing_loss(
        self,
        activation: torch.Tensor,
        aux_loss_coeff: float,
        aux_loss: torch.Tensor,
        aux_loss_name: str,
        reduce_group: Any,
        reduce_group_has_dp: bool = False,
        valid_token_count: Any = None,
    ) -> torch.Tensor:
        tokens = activation.shape[0] if valid_token_count is None else valid_token_count
        return super().attach_and_log_load_balancing_loss(
            activation,
            aux_loss_coeff,
            aux_loss,
            aux_loss_name,
            reduce_group,
            reduce_group_has_dp,
            tokens * self.tp_cp_group.size(),
        )

    def apply_z_loss(self, logits: torch.Tensor, padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """logits [tokens, experts], with the gradient of coeff x mean(logsumexp^2) added (Zoph et al. 2022, eq. 5)."""
        if self.config.moe_z_loss_coeff is None or not (self.training and torch.is_grad_enabled()):
            return logits
        # The mean over this rank's tokens, weighted as its share of the microbatch, times the microbatch's tokens.
        loss = z_loss_func(logits, self.config.moe_z_loss_coeff, padding_mask=padding_mask)
        tokens = logits.shape[0] if padding_mask is None else (~padding_mask).sum()
        return MoEAuxLossAutoScaler.apply(logits, loss * tokens)
