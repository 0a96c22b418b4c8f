"""Documents -> tokens, in the shard's dtype, with a row of the table for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

import numpy as np
import pyarrow as pa

from megatron_ext.config import schema
from preprocess import metadata, sentences
from preprocess.document import Document, Dropped
from preprocess.pipeline import Tally
from preprocess.shards import checked
from preprocess.tokenizer import open_tokenizer
from preprocess.tokenizer.frame import frame


@dataclass(frozen=True)
class Recipe:
    """How texts become tokens, as plain data. bos and eod: the ids around each document, or None.

    sample: texts of the inputs on which a fast tokenizer is compared with the exact one.
    """

    tokenizer: schema.Tokenizer
    blob: bytes
    sample: Tuple[str, ...]
    bos: Optional[int]
    eod: Optional[int]
    split_sentences: bool
    label: Optional[schema.Label]  # of chat data
    template: str


@dataclass(frozen=True)
class Encoded:
    """ids [sum of lengths], lengths [sequences], sequences [documents]; chat data also has mask [ids]: 1 where the
    token is to be learned, and packs: how many documents each pack holds."""

    ids: np.ndarray
    lengths: np.ndarray
    sequences: np.ndarray
    rows: pa.RecordBatch
    text_bytes: int
    unknown_tokens: int
    how: str  # the library that made the ids
    mask: Optional[np.ndarray] = None
    packs: Optional[np.ndarray] = None


class Encoder:
    """Opened once in each worker."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.tokenizer = open_tokenizer(recipe.tokenizer, recipe.blob, recipe.sample)
        self._labelling = None
        if recipe.label is not None:
            from preprocess.label.encode import Labelling

            self._labelling = Labelling(recipe.label, recipe.blob, recipe.template)

    def __call__(self, documents: List[Document], tally: Tally) -> Encoded:
        """What the tokenizer leaves nothing of is dropped, in `tally`."""
        if self._labelling is not None:
            return self._labelled(documents, tally)
        texts, sequences = self._texts(documents)
        ids, lengths = self.tokenizer.encode(texts)
        return self._whole(documents, ids, lengths, sequences, tally)

    def _texts(self, documents: Sequence[Document]) -> Tuple[List[str], np.ndarray]:
        """-> texts to tokenise, how many of each document."""
        if not self._recipe.split_sentences:
            return [document.text for document in documents], np.ones(len(documents), np.int32)
        split = [sentences.split(document.text) for document in documents]
        return [text for texts in split for text in texts], np.asarray([len(texts) for texts in split], np.int32)

    def _whole(
        self, documents: List[Document], ids: np.ndarray, lengths: np.ndarray, sequences: np.ndarray, tally: Tally
    ) -> Encoded:
        owners = np.repeat(np.arange(len(documents)), sequences)
        owners, lengths = owners[lengths > 0], lengths[lengths > 0]
        sequences = np.bincount(owners, minlength=len(documents)).astype(np.int32)
        for place in np.flatnonzero(sequences == 0):
            tally.drop(documents[place], Dropped("no tokens"))  # the tokenizer's own normalisation left nothing
        kept = [document for document, number in zip(documents, sequences) if number]
        sequences = sequences[sequences > 0]
        unknown = self.tokenizer.unknown
        unknown_tokens = int((ids == unknown).sum()) if unknown is not None else 0
        ids, lengths = self._framed(ids, lengths, sequences)
        texts = [document.text.encode("utf-8") for document in kept]
        return Encoded(
            checked(ids, lengths, self.tokenizer.vocab_size),
            lengths.astype(np.int32),
            sequences,
            metadata.describe(kept, texts),
            sum(map(len, texts)),
            unknown_tokens,
            self.tokenizer.exact,
        )

    def _framed(self, ids: np.ndarray, lengths: np.ndarray, sequences: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """BOS before and EOD after each document; in the first and the last of its sequences."""
        if not self._recipe.split_sentences:
            return frame(ids, lengths, self._recipe.bos, self._recipe.eod)
        ends = np.cumsum(sequences)
        starts = ends - sequences
        owners = np.repeat(np.arange(len(sequences)), sequences)
        totals = np.bincount(owners, weights=lengths, minlength=len(sequences)).astype(np.int64)
        ids, _ = frame(ids, totals, self._recipe.bos, self._recipe.eod)
        lengths = lengths.copy()
        lengths[starts] += self._recipe.bos is not None
        lengths[ends - 1] += self._recipe.eod is not None
        return ids, lengths

    def _labelled(self, documents: List[Document], tally: Tally) -> Encoded:
        assert self._labelling is not None
        kept, ids, lengths, mask, packs = self._labelling(documents, tally)
        texts = [document.text.encode("utf-8") for document in kept]
        unknown = self.tokenizer.unknown
        return Encoded(
            checked(ids, lengths, self.tokenizer.vocab_size),
            lengths.astype(np.int32),
            np.ones(len(lengths), np.int32),
            metadata.describe(kept, texts),
            sum(map(len, texts)),
            int((ids == unknown).sum()) if unknown is not None else 0,
            self.tokenizer.exact,
            mask,
            packs,
        )
