"""SentencePiece .model, Hugging Face tokenizer.json and tiktoken rank files behind one face.

Text never becomes a control token: an `<|endoftext|>` that stands in a document is encoded as the characters it is. No
id is added: `frame` puts the beginning and the end around a document, so each occurs once.

The end of a document is, for SentencePiece, the model's eos; the other files do not say which token that is: the first
of END_NAMES that they have. <|im_end|> is none of them, since it ends a turn of a chat, not a document.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Optional, Protocol, Sequence, Tuple

import numpy as np

from megatron_ext.config import schema
from megatron_ext.config.schema import TokenizerKind

END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "eos")
BEGIN_NAMES = ("<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>", "<s>", "<bos>", "bos")


class Tokenizer(Protocol):
    """vocab_size: the greatest id that can occur, added tokens included, plus one; entries: how many ids are used.

    unknown: the id of <unk>. controls, added: spellings of the control tokens, and of the other tokens that the library
    looks for in text before its model. exact: the library that makes the ids, for the log and the manifest.
    """

    vocab_size: int
    entries: int
    eod: Optional[int]
    bos: Optional[int]
    unknown: Optional[int]
    controls: Tuple[str, ...]
    added: Tuple[str, ...]
    exact: str

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        """-> ids int32 [sum of lengths], lengths int64 [texts]."""

    def decode(self, ids: Sequence[int]) -> str: ...


def open_tokenizer(tokenizer: schema.Tokenizer, blob: bytes, sample: Sequence[str] = ()) -> Tokenizer:
    """blob: content of the file at tokenizer.path; sample: texts on which the fast library must equal the exact one.

    Raises ValueError when the file is not of tokenizer.kind, or has not what the settings say.
    """
    if tokenizer.pattern and tokenizer.kind != TokenizerKind.tiktoken:
        raise ValueError(
            f"data.tokenizer.pattern={tokenizer.pattern} is for data.tokenizer.kind=tiktoken, not {tokenizer.kind}: "
            f"other files hold their own; leave it empty"
        )
    try:
        exact = _exact(tokenizer, blob)
    except Exception as error:  # tokenizers raises bare Exception, sentencepiece RuntimeError
        raise ValueError(
            f"{tokenizer.path} is not a {tokenizer.kind} tokenizer ({_first_line(error)}); correct "
            f"data.tokenizer.path, or set data.tokenizer.kind to one of {', '.join(TokenizerKind.__members__)}"
        ) from error
    if not tokenizer.fast:
        return exact
    from preprocess.tokenizer.fast import quickened

    return quickened(exact, tokenizer, blob, sample)


def _exact(tokenizer: schema.Tokenizer, blob: bytes) -> Tokenizer:
    if tokenizer.kind == TokenizerKind.sentencepiece:
        from preprocess.tokenizer.sentencepiece import SentencePiece

        return SentencePiece(blob)
    if tokenizer.kind == TokenizerKind.tiktoken:
        from preprocess.tokenizer.tiktoken import Tiktoken

        return Tiktoken(blob, tokenizer.pattern)
    from preprocess.tokenizer.huggingface import HuggingFace

    return HuggingFace(blob)


def read(path: str) -> bytes:
    """Raises ValueError when there is no such file."""
    if not path:
        raise ValueError(
            "data.tokenizer.path is empty; name a SentencePiece .model, a Hugging Face tokenizer.json or a rank file"
        )
    if not Path(path).is_file():
        raise ValueError(
            f"tokenizer {path} does not exist; correct data.tokenizer.path, or let data.tokenizer.train_vocab_size=N "
            f"train one there"
        )
    return Path(path).read_bytes()


def end_of_document(tokenizer: Tokenizer, path: str) -> int:
    """Raises ValueError when the tokenizer has none."""
    if tokenizer.eod is None:
        raise ValueError(
            f"tokenizer {path} has no end-of-document token (a SentencePiece model needs an eos, another file one of "
            f"{' '.join(END_NAMES)}); use another one, or set data.source.append_eod=false"
        )
    return tokenizer.eod


def beginning(tokenizer: Tokenizer, path: str) -> int:
    """Raises ValueError when the tokenizer has none."""
    if tokenizer.bos is None:
        raise ValueError(
            f"tokenizer {path} has no beginning token (a SentencePiece model needs a bos, another file one of "
            f"{' '.join(BEGIN_NAMES)}); use another one, or set data.source.prepend_bos=false"
        )
    return tokenizer.bos


def fingerprint(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def flat(rows: Sequence[Any]) -> Tuple[np.ndarray, np.ndarray]:
    """Ids of each text, as lists or arrays -> ids int32 [sum of lengths], lengths int64 [texts]."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    ids = np.concatenate([np.asarray(row, np.int32) for row in rows]) if len(rows) else np.empty(0, np.int32)
    return ids, lengths


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
