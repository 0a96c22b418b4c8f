"""A paragraph from a Hugging Face model folder, by transformers alone.

    python -m demo.generate runs/demo/hf "This module provides"

Sampled, so that it is not one phrase over and over; the seed makes it the same paragraph each time.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from megatron_ext.config.rundir import EXIT_BAD_INPUT, EXIT_DONE, write_atomically


def main(arguments: Optional[List[str]] = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m demo.generate", description=__doc__, formatter_class=raw)
    parser.add_argument("model", type=Path, help="folder with config.json, weights and tokenizer.json")
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write prompt and text there, as JSON")
    options = parser.parse_args(arguments)
    if not (options.model / "config.json").is_file():
        print(f"demo.generate: {options.model} is no Hugging Face model folder; llm-convert makes one", file=sys.stderr)
        return EXIT_BAD_INPUT
    facts = generate(options.model, options.prompt, options.tokens, options.seed)
    if options.out:
        write_atomically(options.out, json.dumps(facts) + "\n")
    print(facts["prompt"] + facts["text"])
    return EXIT_DONE


def generate(folder: Path, prompt: str, tokens: int, seed: int) -> Dict[str, Any]:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    transformers.set_seed(seed)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False)
    begin = inputs["input_ids"].shape[1]
    ids = model.generate(
        **inputs,
        max_new_tokens=tokens,
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
        repetition_penalty=1.15,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
    )[0]
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    start = tokenizer.decode(ids[:begin], skip_special_tokens=True)
    return {"prompt": prompt, "text": whole[len(start) :], "tokens": len(ids) - begin, "seed": seed}


if __name__ == "__main__":
    sys.exit(main())
