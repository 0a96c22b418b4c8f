"""Hugging Face tokenizer.json files, by the library `tokenizers`."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional, Sequence, Set, Tuple

import numpy as np

from preprocess.tokenizer import BEGIN_NAMES, END_NAMES, controls, flat


class HuggingFace:
    def __init__(self, blob: bytes) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
        import tokenizers

        content = json.loads(blob)
        self._tokenizer = self._encoder = _library(blob.decode("utf-8"))
        tokens = self._tokenizer.get_added_tokens_decoder()
        special = {token.content: number for number, token in tokens.items() if token.special}
        self.controls = tuple(special)
        self.added = tuple(token.content for token in tokens.values() if not token.special)
        ids = set(self._tokenizer.get_vocab(with_added_tokens=True).values())
        self.vocab_size, self.entries = max(ids, default=-1) + 1, len(ids)
        self.unknown = self._unknown(content["model"])
        if self._made_of_text(special):  # Unigram's vocabulary holds them, and its model finds them in text
            self._encoder = _library(json.dumps(controls.without(content, self.controls)))
            if made := self._made_of_text(special):
                raise ValueError(f"its model makes control tokens of text: {' '.join(sorted(made))}")
        self.eod, self.bos = self._first(END_NAMES), self._first(BEGIN_NAMES)
        self.exact = f"tokenizers {tokenizers.__version__}"

    def _first(self, names: Tuple[str, ...]) -> Optional[int]:
        """Of the tokens that have one of these names and are not made of text: `eos` may be a word like any other."""
        found = ((name, self._tokenizer.token_to_id(name)) for name in names)
        return next((id for name, id in found if id is not None and id not in self.encode([name])[0]), None)

    def _made_of_text(self, special: Dict[str, int]) -> Set[str]:
        ids = set(self.encode(self.controls)[0].tolist()) - {self.unknown}
        return {name for name, id in special.items() if id in ids}

    def _unknown(self, model: Dict[str, Any]) -> Optional[int]:
        """Unigram names it by its id, the others by its text."""
        if "unk_id" in model:
            return model["unk_id"]  # type: ignore[no-any-return]
        return self._tokenizer.token_to_id(model["unk_token"]) if model.get("unk_token") else None

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        return flat([one.ids for one in self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def _library(content: str) -> Any:
    import tokenizers

    made = tokenizers.Tokenizer.from_str(content)
    made.no_truncation()  # a file saved by a trainer often carries its sequence length
    made.no_padding()
    made.encode_special_tokens = True
    if getattr(made.model, "dropout", None):
        made.model.dropout = None  # BPE dropout (Provilkov et al. 2020) would give other ids each time
    return made
