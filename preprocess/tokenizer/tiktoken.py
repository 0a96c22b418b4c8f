"""tiktoken rank files: a line a token, base64 bytes and rank. Pattern and special tokens stand in code, by name."""

from __future__ import annotations

import base64
from typing import Dict, Optional, Sequence, Tuple

import numpy as np

from preprocess.tokenizer import BEGIN_NAMES, END_NAMES, flat

# openai/tiktoken, openai_public.py. The pattern of r50k is GPT-2's.
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS: Dict[str, Tuple[str, int, Dict[str, int]]] = {  # pattern, number of ranks, special tokens
    "r50k_base": (_GPT2, 50256, {"<|endoftext|>": 50256}),
    "gpt2": (_GPT2, 50256, {"<|endoftext|>": 50256}),
    "p50k_base": (_GPT2, 50280, {"<|endoftext|>": 50256}),
    "cl100k_base": (
        _CL100K,
        100256,
        {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260,
         "<|endofprompt|>": 100276},
    ),
    "o200k_base": (_O200K, 199998, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}  # fmt: skip


class Tiktoken:
    def __init__(self, blob: bytes, pattern: str) -> None:
        """pattern: a name of PATTERNS, or "" for the one with as many ranks as the file."""
        import tiktoken

        ranks = _ranks(blob)
        name = pattern or _by_size(len(ranks))
        if name not in PATTERNS:
            raise ValueError(f"data.tokenizer.pattern={name}; known are {', '.join(PATTERNS)}")
        regex, size, special = PATTERNS[name]
        if size != len(ranks):
            raise ValueError(f"it has {len(ranks)} ranks, {name} has {size}; correct data.tokenizer.pattern")
        self._encoding = tiktoken.Encoding(name, pat_str=regex, mergeable_ranks=ranks, special_tokens=special)
        self.vocab_size = self._encoding.max_token_value + 1
        self.entries = len({*ranks.values(), *special.values()})
        self.eod = next((special[one] for one in END_NAMES if one in special), None)
        self.bos = next((special[one] for one in BEGIN_NAMES if one in special), None)
        self.unknown: Optional[int] = None
        self.exact = f"tiktoken {tiktoken.__version__} {name}"
        self.controls = tuple(special)
        self.added: Tuple[str, ...] = ()

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        return flat([self._encoding.encode_to_numpy(text, disallowed_special=()).view(np.int32) for text in texts])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._encoding.decode(list(ids)))


def _ranks(blob: bytes) -> Dict[bytes, int]:
    found = {}
    for number, line in enumerate(blob.splitlines(), start=1):
        try:
            if line:
                token, rank = line.split()
                found[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise ValueError(f"line {number} is not base64 and a rank") from None
    return found


def _by_size(ranks: int) -> str:
    found = [name for name, (_, size, _) in PATTERNS.items() if size == ranks]
    if not found:
        raise ValueError(f"no known encoding has {ranks} ranks; set data.tokenizer.pattern to one of {list(PATTERNS)}")
    return found[0]
