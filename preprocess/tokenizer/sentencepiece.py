"""SentencePiece .model files, by the library of that name. Its control pieces are never made of text."""

from __future__ import annotations

from importlib.metadata import version
from typing import Optional, Sequence, Tuple

import numpy as np

from preprocess.tokenizer import flat


class SentencePiece:
    def __init__(self, blob: bytes) -> None:
        from sentencepiece import SentencePieceProcessor

        model = self._processor = SentencePieceProcessor()
        model.LoadFromSerializedProto(blob)  # the constructor takes no bytes for no argument
        self.vocab_size: int = model.vocab_size()
        self.entries = self.vocab_size
        self.eod, self.bos, self.unknown = _id(model.eos_id()), _id(model.bos_id()), _id(model.unk_id())
        special = [id for id in range(self.vocab_size) if model.is_control(id) or model.is_unknown(id)]
        self.controls = tuple(model.id_to_piece(id) for id in special)
        self.added: Tuple[str, ...] = ()
        self.exact = f"sentencepiece {version('sentencepiece')}"

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        return flat(self._processor.encode(list(texts), num_threads=1))  # the workers are the parallelism

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode(list(ids)))


def _id(value: int) -> Optional[int]:
    return value if value >= 0 else None
