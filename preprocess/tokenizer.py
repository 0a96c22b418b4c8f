"""SentencePiece .model and Hugging Face tokenizer.json files behind one face.

Text never becomes a control token: an `<|endoftext|>` that stands in a document is encoded as the characters it is, so
the end-of-document id occurs once, at the end. No beginning-of-sequence token is added.

The end-of-document id is, for SentencePiece, the model's eos; for Hugging Face, whose tokenizer.json does not say which
token that is, the first of END_NAMES that the vocabulary has.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import List, Optional, Protocol, Sequence

from megatron_ext.config.schema import TokenizerKind

END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "eos")


class Tokenizer(Protocol):
    """vocab_size is the greatest id that can occur, added tokens included, plus one; `unknown` is the id of <unk>."""

    vocab_size: int
    eod: Optional[int]
    unknown: Optional[int]

    def encode(self, texts: Sequence[str]) -> List[List[int]]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class SentencePiece:
    def __init__(self, blob: bytes) -> None:
        from sentencepiece import SentencePieceProcessor

        self._processor = SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(blob)  # the constructor takes no bytes for no argument
        self.vocab_size = self._processor.vocab_size()
        self.eod = _id(self._processor.eos_id())
        self.unknown = _id(self._processor.unk_id())

    def encode(self, texts: Sequence[str]) -> List[List[int]]:
        return self._processor.encode(list(texts), num_threads=1)  # the workers are the parallelism

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode(list(ids))


class HuggingFace:
    def __init__(self, blob: bytes) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
        from tokenizers import Tokenizer as Library

        self._tokenizer = Library.from_str(blob.decode("utf-8"))
        self._tokenizer.no_truncation()  # a file saved by a trainer often carries its sequence length
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        found = [self._tokenizer.token_to_id(name) for name in END_NAMES]
        self.eod = next((token for token in found if token is not None), None)
        self.unknown = self._unknown(json.loads(blob)["model"])

    def _unknown(self, model: dict) -> Optional[int]:
        """Unigram names it by its id, the others by its text."""
        if "unk_id" in model:
            return model["unk_id"]
        return self._tokenizer.token_to_id(model["unk_token"]) if model.get("unk_token") else None

    def encode(self, texts: Sequence[str]) -> List[List[int]]:
        return [encoded.ids for encoded in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


def open_tokenizer(kind: TokenizerKind, blob: bytes, path: str) -> Tokenizer:
    """blob is the content of the file at `path`. Raises ValueError when it is not of that kind."""
    try:
        return (SentencePiece if kind == TokenizerKind.sentencepiece else HuggingFace)(blob)
    except Exception as error:  # tokenizers raises bare Exception, sentencepiece RuntimeError
        raise ValueError(
            f"{path} is not a {kind} tokenizer ({_first_line(error)}); correct data.tokenizer.path, or set "
            f"data.tokenizer.kind to one of {', '.join(TokenizerKind.__members__)}"
        ) from error


def read(path: str) -> bytes:
    """Raises ValueError when there is no such file."""
    if not path:
        raise ValueError("data.tokenizer.path is empty; name a SentencePiece .model or a Hugging Face tokenizer.json")
    if not Path(path).is_file():
        raise ValueError(
            f"tokenizer {path} does not exist; correct data.tokenizer.path, or let data.tokenizer.train_vocab_size=N "
            f"train a SentencePiece model there"
        )
    return Path(path).read_bytes()


def end_of_document(tokenizer: Tokenizer, path: str) -> int:
    """Raises ValueError when the tokenizer has none."""
    if tokenizer.eod is None:
        raise ValueError(
            f"tokenizer {path} has no end-of-document token (a SentencePiece model needs an eos, a tokenizer.json one "
            f"of {' '.join(END_NAMES)}); use another one, or set data.source.append_eod=false"
        )
    return tokenizer.eod


def fingerprint(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _id(value: int) -> Optional[int]:
    return value if value >= 0 else None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
