"""Causal attention on torch's scaled_dot_product_attention, under context parallelism as well.

Shapes: S sequence on this rank, B batch, H query heads, G key/value groups, D head.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from megatron.core.transformer.module import MegatronModule

from megatron_ext.model.attention.mask import zigzag_causal_mask


class CausalAttention(MegatronModule):
    """Core attention in the place of megatron-core's DotProductAttention, which asserts a context size of 1.

    Under context parallelism keys and values are all-gathered over the context group (their gradients
    reduce-scattered); queries stay. Ranks hold the chunks r and 2n-1-r of 2n, as Megatron's rotary embeddings do, so
    that causal work is even.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: Optional[float] = None,
        softmax_scale: Optional[float] = None,
        cp_comm_type: Optional[str] = None,
        pg_collection: Any = None,
    ) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self.scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(config.kv_channels)
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.context_group = pg_collection.cp

    def forward(
        self,
        query_SBHD: torch.Tensor,
        key_SBGD: torch.Tensor,
        value_SBGD: torch.Tensor,
        attention_mask: Optional[torch.Tensor],
        attn_mask_type: Any = None,
        attention_bias: Optional[torch.Tensor] = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """-> [S, B, H * D]. attention_mask: None, causal; or what mask.causal_mask gives. What else there could be is
        refused rather than ignored."""
        if attention_bias is not None or packed_seq_params is not None:
            raise NotImplementedError("CausalAttention takes no bias and no packed sequences")
        mask = attention_mask
        if self.context_group.size() > 1:
            if mask is None:
                place = self.context_group.rank(), self.context_group.size()
                mask = zigzag_causal_mask(query_SBHD.shape[0], *place, query_SBHD.device)
            key_SBGD, value_SBGD = (_GatherSequence.apply(x, self.context_group) for x in (key_SBGD, value_SBGD))
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query_SBHD, key_SBGD, value_SBGD))
        dropout = self.dropout if self.training else 0.0
        with get_cuda_rng_tracker().fork() if dropout else nullcontext():  # heads of each tensor rank drop differently
            out_BHSD = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask,
                is_causal=mask is None,
                dropout_p=dropout,
                scale=self.scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        return out_BHSD.permute(2, 0, 1, 3).reshape(*query_SBHD.shape[:2], -1)


class _GatherSequence(torch.autograd.Function):
    """[S, ...] -> [n S, ...]: all-gather forward, reduce-scatter backward, over the group."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        out = x.new_empty((group.size() * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        out = grad.new_empty((grad.shape[0] // ctx.group.size(), *grad.shape[1:]))
        dist.reduce_scatter_tensor(out, grad.contiguous(), group=ctx.group)
        return out, None
