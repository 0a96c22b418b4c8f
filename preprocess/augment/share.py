"""Which documents get an augmented variant, and where it goes.

A document is chosen by a hash of seed and id, so that nothing else has a say: not its place, not the number of workers.
Only the cap looks at its neighbours: among the documents of one call, never more variants than max_share of all that
come out. A call is a chunk of the input, which is the same however many work on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from fractions import Fraction
from typing import Callable, List, Sequence, Union

from preprocess.document import Document
from preprocess.pipeline import Apply, Tally

Variants = List[Union[str, "Refused"]]


@dataclasses.dataclass(frozen=True)
class Refused:
    """Why a document gets no variant: one of few reasons, counted."""

    reason: str


def check(step: str, max_share: float) -> None:
    """Raises ValueError; a document has at most one variant of a step, so half is the most."""
    if not 0 < max_share <= 0.5:
        raise ValueError(
            f"step {step}: max_share={max_share}; it must be above 0 and at most 0.5, a variant a document"
        )


def choose(documents: Sequence[Document], kind: str, max_share: float, seed: int) -> List[int]:
    """Places of those that get a variant. Variants of earlier steps get none, and count; blank texts do neither."""
    ratio = Fraction(str(max_share)) / (1 - Fraction(str(max_share)))  # variants to originals; exact, so is the cap
    variants = sum("augmented" in document.metadata for document in documents)
    originals = [
        place
        for place, document in enumerate(documents)
        if document.text.strip() and "augmented" not in document.metadata
    ]
    room = math.floor(ratio * len(originals)) - variants
    drawn = sorted((_draw(f"{seed}:{kind}:{documents[place].id}"), place) for place in originals)
    return sorted(place for draw, place in drawn[: max(room, 0)] if draw < ratio)


def augment(kind: str, max_share: float, seed: int, make: Callable[[List[Document]], Variants]) -> Apply:
    """A step's work: `make` gives the chosen documents' new texts. A variant follows its original, and names it."""

    def apply(documents: List[Document], tally: Tally) -> List[Document]:
        places = choose(documents, kind, max_share, seed)
        made = dict(zip(places, make([documents[place] for place in places]) if places else []))
        assert len(made) == len(places), f"{len(made)} variants of {len(places)} documents"
        out = []
        for place, document in enumerate(documents):
            out.append(document)
            outcome = made.get(place)
            if isinstance(outcome, Refused):
                tally.change(f"not augmented: {outcome.reason}")
            elif outcome is not None:
                tally.change("augmented")
                out.append(_variant(document, kind, outcome))
        return out

    return apply


def _variant(document: Document, kind: str, text: str) -> Document:
    metadata = {**document.metadata, "parent": document.id, "augmented": kind}
    return dataclasses.replace(document, text=text, id=f"{document.id}/{kind}-1", metadata=metadata)


def _draw(name: str) -> Fraction:
    """Uniform in [0, 1)."""
    digest = hashlib.blake2b(name.encode("utf-8"), digest_size=8).digest()
    return Fraction(int.from_bytes(digest, "big"), 1 << 64)
