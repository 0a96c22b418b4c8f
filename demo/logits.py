"""The same text through a trained checkpoint and through its Hugging Face export: how far apart are the logits?

    python -m demo.logits runs/demo/single runs/demo/hf

The first argument is a one-rank checkpoint, the second what `llm-convert --to hf` made of it. The text is the
beginning of the run's validation split. Exit code: 0 told (whatever the difference), 1 failed, 2 wrong input.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from megatron_ext.config import load
from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, write_atomically
from megatron_ext.config.schema import Run, world_size


def main(arguments: Optional[List[str]] = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m demo.logits", description=__doc__, formatter_class=raw)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("exported", type=Path)
    parser.add_argument("--out", type=Path, help="also write the figures there, as JSON")
    options = parser.parse_args(arguments)
    try:
        facts = compare(options.checkpoint, options.exported)
    except ValueError as error:
        print(f"demo.logits: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    text = json.dumps(facts)
    if options.out:
        write_atomically(options.out, text + "\n")
    print(text)
    return EXIT_DONE


def compare(checkpoint: Path, exported: Path) -> Dict[str, Any]:
    """Both models on one validation batch, in fp32. Raises ValueError for a checkpoint of several ranks."""
    import torch
    import transformers

    warnings.filterwarnings("ignore")  # megatron-core and torch tell each other about the future
    run = load.read(checkpoint / "run.yaml")
    if world_size(run.parallel) != 1:
        raise ValueError(
            f"{checkpoint} is of {world_size(run.parallel)} ranks; llm-convert ... --tensor 1 --pipeline 1"
        )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    largest, scale, compared, agreed, positions = 0.0, 0.0, 0, 0, 0
    for tokens_BS, ours_BSV in our_logits(run, checkpoint):
        with torch.no_grad():
            theirs_BSV = theirs(tokens_BS).logits
        assert ours_BSV.shape == theirs_BSV.shape, f"{ours_BSV.shape} and {theirs_BSV.shape}"
        largest = max(largest, float((ours_BSV - theirs_BSV).abs().max()))
        scale = max(scale, float(ours_BSV.abs().max()))
        agreed += int((ours_BSV.argmax(-1) == theirs_BSV.argmax(-1)).sum())
        compared, positions = compared + ours_BSV.numel(), positions + tokens_BS.numel()
    return {
        "largest_difference": largest,
        "largest_logit": scale,
        "compared": compared,
        "positions": positions,
        "same_first_choice": agreed,
        "parameters": sum(p.numel() for p in theirs.parameters()),
        "transformers": transformers.__version__,
    }


def our_logits(run: Run, checkpoint: Path) -> Iterator[Tuple[Any, Any]]:
    """-> (tokens_BS, logits_BSV without the padding of the vocabulary) for each microbatch of one validation batch."""
    import torch

    from megatron_ext import checkpoint as checkpoints
    from megatron_ext.data.loader import Loader
    from megatron_ext.model.build import build
    from megatron_ext.optim.adamw import AdamW
    from megatron_ext.runtime import parallel

    grid = parallel.start(run)
    chunks = build(run, grid)
    checkpoints.load_weights(run, checkpoint, chunks, AdamW(chunks, run, grid), grid)
    model = chunks[0].eval()
    for batch in Loader(run, grid, "validation").microbatches(0):
        with torch.no_grad():
            yield batch.tokens, model(batch.tokens, batch.positions, None)[..., : run.model.vocab_size].float()
    parallel.stop()


if __name__ == "__main__":
    sys.exit(main())
