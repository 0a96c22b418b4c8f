"""Every parallel layout trains like one rank: `python -m benchmarks.equivalence [--check] [LAYOUT ...]`.

In fp32, from the same initial weights, 20 AdamW steps with eps 1e-5 (at 1e-8 Adam magnifies rounding noise where
gradients are near zero). Per layout: the largest difference of the loss and of the relative gradient norm from the
single rank, over all steps. Ranks are forked on this machine and talk over gloo.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Tuple

from megatron_ext.config import load
from megatron_ext.config.schema import Run, world_size
from megatron_ext.runtime.fork import run_ranks

LOSS_LIMIT, NORM_LIMIT = 5e-6, 1e-5
STEPS = 20

_OVERLAP = ["bucket_size=7001", "overlap_grad_reduce=true", "overlap_param_gather=true"]
DENSE: Dict[str, List[str]] = {
    "TP2": ["tensor=2"],
    "TP4": ["tensor=4"],
    "TP2+SP": ["tensor=2", "sequence=true"],
    "PP2": ["pipeline=2"],
    "PP4": ["pipeline=4"],
    "PP2xVPP2": ["pipeline=2", "virtual_pipeline=2"],
    "DP2": ["data=2", "distributed_optimizer=false"],
    "DP2 overlap": ["data=2", "distributed_optimizer=false", "overlap_grad_reduce=true", "bucket_size=7001"],
    "DP2+DO": ["data=2"],
    "DP2+DO buckets": ["data=2", "bucket_size=7001", "overlap_grad_reduce=true"],
    "DP2+DO overlap": ["data=2", *_OVERLAP],
    "CP2": ["context=2"],
    "CP2xTP2+SP": ["context=2", "tensor=2", "sequence=true"],
    "TP2xPP2xDP2+SP": ["data=2", "tensor=2", "pipeline=2", "sequence=true"],
    "TP2xPP2xCP2": ["tensor=2", "pipeline=2", "context=2"],
    "PP2xVPP2xDP2+DO overlap": ["data=2", "pipeline=2", "virtual_pipeline=2", *_OVERLAP],
}
MOE: Dict[str, List[str]] = {
    "EP2 alltoall": ["data=2", "expert=2"],
    "EP2 allgather": ["data=2", "expert=2", "+dispatcher=allgather"],
    "EP4": ["data=4", "expert=4"],
    "EP2+DO overlap": ["data=2", "expert=2", *_OVERLAP],
    "EP2xPP2 overlap": ["data=2", "expert=2", "pipeline=2", *_OVERLAP],
    "EP2 plain DDP": ["data=2", "expert=2", "distributed_optimizer=false"],
    "TP2 experts whole (EP1 ETP1)": ["tensor=2", "sequence=true"],
    "EP2xTP2 ETP1": ["data=2", "tensor=2", "sequence=true", "expert=2"],
    "EP2xTP2 ETP2": ["data=2", "tensor=2", "sequence=true", "expert=2", "expert_tensor=2"],
    "EP2xTP2xPP2": ["data=2", "tensor=2", "pipeline=2", "sequence=true", "expert=2"],
    "EP2xPP2xVPP2": ["data=2", "pipeline=2", "virtual_pipeline=2", "expert=2"],
    "EP2xCP2": ["data=1", "context=2", "expert=2"],
}
TIED: Dict[str, List[str]] = {
    "TP2": ["tensor=2"],
    "PP2": ["pipeline=2"],
    "PP2+DP2+DO": ["pipeline=2", "data=2"],
    "TP2xPP2+SP": ["tensor=2", "pipeline=2", "sequence=true"],
}
PACKED: Dict[str, List[str]] = {
    "TP2+SP": ["tensor=2", "sequence=true"],
    "PP2xDP2+DO": ["pipeline=2", "data=2"],
    "CP2": ["context=2"],
    "TP2xPP2xCP2": ["tensor=2", "pipeline=2", "context=2"],
}

_COMMON = [
    "model.num_layers=4",
    "model.hidden_size=64",
    "model.num_heads=8",
    "model.vocab_size=250",  # padded to 256: the padding must not show
    "model.vocab_multiple=64",
    "model.seq_length=64",
    "train.precision=fp32",
    f"train.steps={STEPS}",
    "train.global_batch_size=8",
    "optim.eps=1e-5",
    "optim.lr=1e-3",
    "optim.min_lr=1e-4",
    "data.tokenizer.path=''",
]
_PACKS = "gpt (packs)"
MODELS: Dict[str, Tuple[List[str], Dict[str, List[str]]]] = {
    # Odd sizes: parameters whose numbers are no multiples of what buckets are padded to.
    "llama (GQA)": (["model=llama_tiny", "model.ffn_size=172", "model.num_kv_heads=4", *_COMMON], DENSE),
    "gpt (tied)": (["model=gpt_tiny", "model.ffn_size=172", *_COMMON], TIED),
    "mixtral": (
        ["model=mixtral_tiny", "model.ffn_size=72", "model.moe.num_experts=4", "model.num_kv_heads=4", *_COMMON],
        MOE,
    ),
    # Text and conversations with loss masks; learned positions, which begin anew in each conversation.
    _PACKS: (["model=gpt_tiny", "model.ffn_size=172", "train.micro_batch_size=2", *_COMMON], PACKED),
}


@dataclass(frozen=True)
class Row:
    model: str
    layout: str
    ranks: int
    loss: float
    norm: float
    seconds: float

    @property
    def passed(self) -> bool:
        return self.loss <= LOSS_LIMIT and self.norm <= NORM_LIMIT


def trajectory(run: Run) -> List[Tuple[float, float]]:
    """(loss, gradient norm) of every step; what one rank does."""
    from megatron_ext.data.loader import Loader
    from megatron_ext.model.build import build
    from megatron_ext.optim.adamw import AdamW
    from megatron_ext.runtime import parallel
    from megatron_ext.step import Stepper

    grid = parallel.start(run)
    chunks = build(run, grid)
    stepper = Stepper(run, grid, chunks, AdamW(chunks, run, grid))
    loader = Loader(run, grid, "train")
    outcomes = [stepper.train(step, loader) for step in range(run.train.steps)]
    return [(outcome.loss, outcome.grad_norm) for outcome in outcomes]


def layout_overrides(settings: List[str]) -> List[str]:
    """ "tensor=2" -> "parallel.tensor=2"; a leading + names a field of the mixture."""
    return [f"model.moe.{s[1:]}" if s.startswith("+") else f"parallel.{s}" for s in settings]


def compare(run: Run, reference: List[Tuple[float, float]]) -> Tuple[float, float]:
    """-> largest difference of the loss, largest relative difference of the gradient norm, over steps and ranks."""
    results = run_ranks(world_size(run.parallel), trajectory, run)
    assert all(result == results[0] for result in results), "ranks disagree about the loss"
    loss = max(abs(a[0] - b[0]) for a, b in zip(results[0], reference))
    norm = max(abs(a[1] - b[1]) / b[1] for a, b in zip(results[0], reference))
    return loss, norm


def write_data(folder: Path) -> None:
    write_shard(folder / "text", 250)
    write_shard(folder / "chats", 250, longest=30)
    write_packs(folder / "chats", 64)


def data_of(model: str, folder: Path) -> str:
    """What write_data has for a model, as an override."""
    return f"data.blend=[{folder}/text{f',{folder}/chats' if model == _PACKS else ''}]"


def write_shard(prefix: Path, vocab_size: int, documents: int = 300, longest: int = 299) -> None:
    """A shard of text that can be learnt: a fixed random chain in which each token has four successors."""
    import numpy as np

    random = np.random.default_rng(0)
    successors = random.integers(0, vocab_size, size=(vocab_size, 4))
    lengths = random.integers(5, longest + 1, size=documents).astype(np.int32)
    choices = random.integers(0, 4, size=int(lengths.sum()))
    tokens = np.zeros(len(choices), dtype=np.uint16)
    for place in range(1, len(tokens)):
        tokens[place] = successors[tokens[place - 1], choices[place]]
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * 2
    header = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8])
    header += documents.to_bytes(8, "little") + (documents + 1).to_bytes(8, "little")
    boundaries = np.arange(documents + 1, dtype=np.int64)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    tokens.tofile(f"{prefix}.bin")
    Path(f"{prefix}.idx").write_bytes(header + lengths.tobytes() + pointers.tobytes() + boundaries.tobytes())
    Path(f"{prefix}.json").write_text(json.dumps({"tokenizer": {"vocab_size": vocab_size, "sha256": "synthetic"}}))


def write_packs(prefix: Path, length: int) -> None:
    """Makes conversations of a shard's documents, each in the first pack in a row that has room; half of the tokens
    are learned."""
    import numpy as np

    from megatron_ext.data.shard import Shard

    shard, bounds, size = Shard(str(prefix)), [0], 0
    for number, count in enumerate(shard.lengths.tolist()):
        if size + count > length:
            bounds.append(number)
            size = 0
        size += count
    np.asarray([*bounds, len(shard)], np.int64).tofile(f"{prefix}.packs")
    np.random.default_rng(1).integers(0, 2, len(shard.tokens), np.uint8).tofile(f"{prefix}.mask")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", help="only layouts whose name contains one of these")
    parser.add_argument("--check", action="store_true", help="exit 1 when a layout misses a limit")
    options = parser.parse_args()
    print(f"{'model':<12} {'layout':<29} {'ranks':>5} {'loss':>9} {'norm':>9} {'s':>6}")
    rows: List[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for name, (overrides, layouts) in MODELS.items():
            chosen = {k: v for k, v in layouts.items() if not options.layouts or any(w in k for w in options.layouts)}
            overrides = [*overrides, data_of(name, Path(folder))]
            reference = run_ranks(1, trajectory, load.compose(overrides))[0] if chosen else []
            for layout, settings in chosen.items():
                run, began = load.compose(overrides + layout_overrides(settings)), time.monotonic()
                loss, norm = compare(run, reference)
                rows.append(Row(name, layout, world_size(run.parallel), loss, norm, time.monotonic() - began))
                row = rows[-1]
                mark = "" if row.passed else "  MISSED"
                print(
                    f"{name:<12} {layout:<29} {row.ranks:>5} {loss:9.1e} {norm:9.1e} {row.seconds:6.1f}{mark}",
                    flush=True,
                )
    passed = sum(row.passed for row in rows)
    limits = f"loss within {LOSS_LIMIT:g}, gradient norm within {NORM_LIMIT:g} relative, {STEPS} steps"
    verdict = "equal" if passed == len(rows) else "NOT EQUAL"
    print(f"{verdict}: {passed} of {len(rows)} layouts train like one rank ({limits})")
    return 1 if options.check and passed < len(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
