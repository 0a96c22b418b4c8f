"""Steps `duplicates` (equal texts) and `near_duplicates` (alike texts): the first in the order of the input stays."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from itertools import chain
from typing import Any, Callable, Dict, List

import numpy as np

from preprocess.dedup import clusters, groups, minhash, remembered, sorting
from preprocess.dedup.files import NEW, Removed, Round, Sketch, identifiers, write_removed
from preprocess.dedup.verified import verified
from preprocess.document import Document, Dropped
from preprocess.manifest import digest
from preprocess.pipeline import Tally
from preprocess.staging import write_atomically


class _Whole:
    """What both have in common: rows of hashes a document, of which one column, or some, must be equal."""

    index: str
    _reason: str

    @property
    def searches(self) -> int:
        raise NotImplementedError

    @property
    def width(self) -> int:
        raise NotImplementedError

    def columns(self, task: int) -> List[int]:
        """Of the values, that must be equal in this search."""
        raise NotImplementedError

    def search(self, task: int, round: Round) -> None:
        """Pairs of the documents with an equal key, those of an index among them."""
        columns = self.columns(task)
        known = remembered.sketches(self._generations(round.output), self.width)
        rows = (
            np.column_stack([values[:, columns], numbers])
            for numbers, values in chain(known, round.sketches(self.width))
        )
        ordered = sorting.in_order(rows, len(columns) + 1, round.memory, round.folder)
        pairs = groups.unique(groups.stars(ordered, len(columns), self._chain()))
        write_atomically(round.found(task), np.ascontiguousarray(pairs, "<u8").tobytes())

    def decide(self, round: Round) -> Tally:
        tally = Tally()
        pairs = np.zeros((0, 2), np.uint64)
        for task in range(self.searches):  # one by one: most searches find the same
            pairs = groups.unique([pairs, np.fromfile(round.found(task), "<u8").reshape(-1, 2)])
        pairs = self._checked(pairs, round, tally)
        gone, stays = clusters.decide(pairs)
        new = gone >= np.uint64(NEW)  # those of an index were judged in their time
        gone, stays = gone[new], stays[new]
        kept, places = np.unique(stays, return_inverse=True)
        names = {**remembered.names(self._generations(round.output), kept), **identifiers(round, kept)}
        ids = np.asarray([names[one] for one in kept.tolist()] or [""], object)
        write_removed(round, gone, np.full(len(gone), -1), ids[places] if len(gone) else np.zeros(0, object))
        return tally

    def apply(self, documents: List[Document], removed: Removed, tally: Tally) -> List[Document]:
        gone = dict(zip(removed.documents.tolist(), removed.kept))
        for place, kept in gone.items():
            tally.drop(documents[place], Dropped(self._reason, f"of {kept}"))
        return [document for place, document in enumerate(documents) if place not in gone]

    def state(self, output: str) -> str:
        return digest([(one.output, one.stamp) for one in self._generations(output)])

    def remember(self, round: Round, stamp: str) -> None:
        if self.index:
            remembered.remember(self.index, self._settings(), round, self.width, stamp)

    def _generations(self, output: str) -> List[remembered.Generation]:
        return remembered.generations(self.index, self._settings(), output)

    def _settings(self) -> Dict[str, Any]:
        """All but where the index is."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "index"}  # type: ignore[call-overload]

    def _chain(self) -> bool:
        return False

    def _checked(self, pairs: np.ndarray, round: Round, tally: Tally) -> np.ndarray:
        return pairs


@dataclass(frozen=True)
class Duplicates(_Whole):
    """Equal texts, by a hash of 128 bits. ignore_case, ignore_space (runs of it count as one): more of them are equal.

    index: a folder that remembers the documents of each run, "" for none.
    """

    ignore_case: bool = False
    ignore_space: bool = False
    index: str = ""
    _reason = "duplicate"

    @property
    def searches(self) -> int:
        return 1

    @property
    def width(self) -> int:
        return 2

    def columns(self, task: int) -> List[int]:
        return [0, 1]

    def open(self) -> Callable[[List[Document]], Sketch]:
        def sketch(documents: List[Document]) -> Sketch:
            hashes = b"".join(self._hash(document.text) for document in documents)
            return Sketch(np.arange(len(documents), dtype=np.uint32), np.frombuffer(hashes, "<u8").reshape(-1, 2))

        return sketch

    def _hash(self, text: str) -> bytes:
        text = text.casefold() if self.ignore_case else text
        text = " ".join(text.split()) if self.ignore_space else text
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True)
class NearDuplicates(_Whole):
    """Alike texts, by MinHash over runs of `ngram` words; case and punctuation do not count.

    similarity: the Jaccard similarity of which half the pairs are found; at 0.7 that is 14 bands of 8 places, and 5 %
    are found at 0.5, 92 % at 0.8. verify: of the pairs found only those whose shingles really are that similar; in a
    group of equal band, each is compared with the first and with the one before. index: as of `duplicates`.
    """

    similarity: float = 0.7
    ngram: int = 5
    seed: int = 1
    verify: bool = False
    index: str = ""
    _reason = "near duplicate"

    @property
    def scheme(self) -> minhash.Scheme:
        return minhash.scheme_for(self.similarity, self.ngram, self.seed)

    @property
    def searches(self) -> int:
        return self.scheme.bands

    @property
    def width(self) -> int:
        return self.scheme.bands

    def columns(self, task: int) -> List[int]:
        return [task]

    def open(self) -> Callable[[List[Document]], Sketch]:
        if not 0.1 <= self.similarity <= 0.99:
            raise ValueError(f"near_duplicates: similarity={self.similarity}; give a Jaccard similarity, 0.1 to 0.99")
        if self.ngram < 1:
            raise ValueError(f"near_duplicates: ngram={self.ngram}; give a number of words, 1 or more")
        if self.verify and self.index:
            raise ValueError(
                "near_duplicates: an index keeps no texts, so verify=true cannot compare with it; drop one"
            )
        scheme = self.scheme

        def sketch(documents: List[Document]) -> Sketch:
            hashes = minhash.band_hashes([document.text for document in documents], scheme)
            return Sketch(np.arange(len(documents), dtype=np.uint32), hashes)

        return sketch

    def _chain(self) -> bool:
        return self.verify

    def _checked(self, pairs: np.ndarray, round: Round, tally: Tally) -> np.ndarray:
        if not self.verify:
            return pairs
        kept = verified(pairs, round, self.ngram, self.similarity)
        tally.change("pairs that were not as alike as they seemed", len(pairs) - len(kept))
        return kept
