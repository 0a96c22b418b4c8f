"""Small checkpoints for tests, made by others than the code under test: transformers, torch's own writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch

from checkpoints_tools import cli
from megatron_ext.config import load
from megatron_ext.config.schema import Model, Parallel, Run, head_dim, num_kv_heads, padded_vocab_size

ROOT = Path(__file__).resolve().parents[2]


def llama(folder: Path, dtype: torch.dtype = torch.bfloat16, shard_size: str = "5GB", **changes: Any) -> Path:
    """A LlamaForCausalLM with every weight random, norms too, saved by transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape: Dict[str, Any] = dict(vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=4)
    heads: Dict[str, Any] = dict(num_attention_heads=8, num_key_value_heads=2, head_dim=8, max_position_embeddings=64)
    model = LlamaForCausalLM(LlamaConfig(**{**shape, **heads, **changes})).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.copy_(values + 1 if "norm" in name else values)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def huggingface_tensors(folder: Path) -> Dict[str, torch.Tensor]:
    """By safetensors' own reader; a name in two files would fail."""
    from safetensors.torch import load_file

    found: Dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        assert not found.keys() & tensors.keys()
        found.update(tensors)
    return found


def assert_same(found: Dict[str, torch.Tensor], expected: Dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].dtype == expected[name].dtype, name
        assert torch.equal(found[name], expected[name]), name


def convert(*arguments: Any) -> int:
    return cli.main([str(argument) for argument in arguments])


def run_program(program: str, *arguments: Any, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """In an interpreter of its own, which has imported nothing yet."""
    line = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=timeout)


def command(*arguments: Any) -> List[str]:
    return [sys.executable, "-m", "checkpoints_tools.cli", *map(str, arguments)]


def weights(model: Model, dtype: torch.dtype) -> Dict[str, torch.Tensor]:
    """Every tensor of a dense model of ours, random."""
    hidden, ffn, layers = model.hidden_size, model.ffn_size, model.num_layers
    rows = (model.num_heads + 2 * num_kv_heads(model)) * head_dim(model)
    shapes: Dict[str, Tuple[int, ...]] = {
        "embedding.word_embeddings.weight": (padded_vocab_size(model), hidden),
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight": (layers, hidden),
        "decoder.layers.self_attention.linear_qkv.weight": (layers, rows, hidden),
        "decoder.layers.self_attention.linear_proj.weight": (layers, hidden, model.num_heads * head_dim(model)),
        "decoder.layers.mlp.linear_fc1.layer_norm_weight": (layers, hidden),
        "decoder.layers.mlp.linear_fc1.weight": (layers, 2 * ffn, hidden),
        "decoder.layers.mlp.linear_fc2.weight": (layers, hidden, ffn),
        "decoder.final_layernorm.weight": (hidden,),
        "output_layer.weight": (padded_vocab_size(model), hidden),
    }
    generator = torch.Generator().manual_seed(2)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def checkpoint(folder: Path, tensors: Dict[str, torch.Tensor], model: Model, parallel: Parallel = Parallel()) -> Path:  # noqa: B008
    """A checkpoint as torch's own writer makes it, every tensor one box, with the files that ours has besides."""
    import torch.distributed.checkpoint as dcp

    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    torch.save({"step": 3}, folder / "common.pt")
    load.freeze(Run(model=model, parallel=parallel), folder / "run.yaml")
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    return folder


def with_optimizer(tensors: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """And moments and masters that tell where they come from."""
    made = dict(tensors)
    for name, tensor in tensors.items():
        master = tensor.float()
        made[f"optimizer.state.param.{name}"] = master
        made[f"optimizer.state.exp_avg.{name}"] = 2 * master
        made[f"optimizer.state.exp_avg_sq.{name}"] = master * master
    return made


def files(folder: Path) -> List[str]:
    """Everything beside and under a folder, hidden and temporary names included."""
    return sorted(os.path.relpath(path, folder) for path in folder.rglob("*"))
