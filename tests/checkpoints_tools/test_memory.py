"""Memory stays bounded: 200 MB and twice the largest tensor above the imports, whatever the checkpoint's size."""

from __future__ import annotations

import json

import pytest
import torch

from megatron_ext.config.schema import Model
from tests.checkpoints_tools.samples import checkpoint, run_program, weights, with_optimizer

# With moments 400 MB, of which the fp32 embedding is 20 MB and one fp32 layer of fc1 7 MB.
MODEL = Model(num_layers=8, hidden_size=640, ffn_size=1408, num_heads=8, num_kv_heads=4, vocab_size=8000)

PROGRAM = """
import json, sys, threading
import torch
from checkpoints_tools import cli, verify
from checkpoints_tools.formats import huggingface, torch_dist
from checkpoints_tools.hf import convert
import torch.distributed.checkpoint.filesystem

def anonymous():  # what cannot be dropped under pressure; file-backed pages are shared with the page cache
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))

before, peak, done = anonymous(), 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
code = cli.main(sys.argv[1:])
done.set()
watcher.join()
print(json.dumps({"code": code, "growth": peak - before}))
"""


@pytest.mark.slow
def test_growth_is_bounded(tmp_path):
    tensors = {name: torch.zeros(()).new_empty(t.shape, dtype=t.dtype).normal_() for name, t in _weights().items()}
    total = sum(t.nbytes for t in tensors.values())
    largest = max(t.nbytes // (t.shape[0] if "layers" in name else 1) for name, t in tensors.items())
    checkpoint(tmp_path / "source", tensors, MODEL)
    del tensors
    bound = 200e6 + 2 * largest
    assert total > 1.5 * bound
    for arguments in (
        ["source", "two", "--tensor", 2, "--pipeline", 2],
        ["two", "one", "--tensor", 1, "--pipeline", 1],
        ["two", "exported", "--to", "hf"],
        ["exported", "back", "--from", "hf", "--tensor", 4],
        ["verify", "source", "two"],
        ["verify", "exported", "two"],
    ):
        places = [tmp_path / a if a in ("source", "two", "one", "exported", "back") else a for a in arguments]
        result = run_program(PROGRAM, *places)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout.splitlines()[-1])
        print(arguments, f"{found['growth'] / 1e6:.0f} MB of {total / 1e6:.0f} MB")
        assert found["code"] == 0 and found["growth"] < bound, (arguments, found)


def _weights():
    made = with_optimizer(weights(MODEL, torch.bfloat16))
    return {name: tensor for name, tensor in made.items() if ".param." not in name}
