"""RMSNorm and LayerNorm that also work under sequence parallelism.

megatron-core's own wrapper refuses sequence parallelism without Transformer Engine. All that is needed is to mark the
parameters: each tensor-parallel rank then sees only its part of the sequence, so their gradients must be summed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from megatron_ext.runtime import device


class Norm(torch.nn.Module):
    """x [..., hidden] -> same shape: RMSNorm (Zhang & Sennrich 2019) or LayerNorm (Ba et al. 2016), by the config.

    No communication here; `finalize_model_grads` sums the marked gradients over the tensor-parallel group.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device.current()))
        self.bias = (
            torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype, device=device.current()))
            if config.normalization == "LayerNorm"
            else None
        )
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
