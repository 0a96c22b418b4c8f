"""The fast library, gigatoken, where it is found to give the ids of the exact one.

Found on texts of this very run, and on odd ones, each time: no table says for which files it is right. It gets the file
without its control tokens, since it would find them in text.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any, List, Sequence, Tuple

import numpy as np

from megatron_ext.config import schema
from megatron_ext.config.schema import TokenizerKind
from preprocess.tokenizer import Tokenizer, controls, flat, odd

_COMPARED = 500  # characters of each text: the exact library, thirty times slower, needs a tenth of a second


class Fast:
    """The face of `exact`, its encoding by gigatoken."""

    def __init__(self, exact: Tokenizer, quick: Any) -> None:
        self._exact, self._quick = exact, quick
        self.vocab_size, self.entries = exact.vocab_size, exact.entries
        self.eod, self.bos, self.unknown = exact.eod, exact.bos, exact.unknown
        self.controls, self.added = exact.controls, exact.added
        self.exact = f"gigatoken {version('gigatoken')}, equal to {exact.exact}"

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        return flat(
            [self._quick.encode(text).view(np.int32) for text in texts]
        )  # as fast as a batch, and in one thread

    def decode(self, ids: Sequence[int]) -> str:
        return self._exact.decode(ids)


def quickened(exact: Tokenizer, settings: schema.Tokenizer, blob: bytes, sample: Sequence[str]) -> Tokenizer:
    """`exact` itself, with the reason in its name, when the fast library is not there, cannot load it or differs."""
    texts = [*odd.texts([*exact.controls, *exact.added]), *(text[:_COMPARED] for text in sample)]
    try:
        fast = Fast(exact, _load(settings.kind, blob, exact.controls))
        reason = _difference(exact, fast, texts)
    except ImportError as error:
        reason = f"gigatoken is not there: {error}"
    except BaseException as error:  # its Rust code panics with an exception that is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        reason = f"gigatoken cannot load it: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"
    if reason:
        exact.exact += f" ({reason})"
        return exact
    fast.exact += f" on {len(texts)} texts"
    return fast


def _load(kind: TokenizerKind, blob: bytes, names: Sequence[str]) -> Any:
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json
    from gigatoken.gigatoken_rs import load_hf_json

    if kind == TokenizerKind.tiktoken:
        raise ValueError("it takes the pattern of a rank file from the file's name")
    content = json.loads(sentencepiece_to_tokenizer_json(blob) if kind == TokenizerKind.sentencepiece else blob)
    return load_hf_json(json.dumps(controls.without(content, set(names))))


def _difference(exact: Tokenizer, fast: Fast, texts: List[str]) -> str:
    (ids, lengths), (fast_ids, fast_lengths) = exact.encode(texts), fast.encode(texts)
    if np.array_equal(lengths, fast_lengths) and np.array_equal(ids, fast_ids):
        return ""
    rows, fast_rows = np.split(ids, np.cumsum(lengths)), np.split(fast_ids, np.cumsum(fast_lengths))
    place = next(i for i, pair in enumerate(zip(rows, fast_rows)) if not np.array_equal(*pair))
    return f"gigatoken differs on {texts[place][:40]!r}"
