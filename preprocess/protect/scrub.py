"""Step `protect`: personal data and secrets -> a tag for each kind.

A tag says what was there and nothing else, so a document becomes the same whatever stands before it in a corpus, in
whichever shard; and scrubbing until nothing is found makes a second time change nothing.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Dict, List, Set, Tuple

from preprocess.document import Document
from preprocess.pipeline import Apply, Tally, each
from preprocess.protect.kinds import KINDS, Kind
from preprocess.protect.places import Places

_TAG = re.compile(r"[^\d@:=\s-]{1,19}")


@dataclass(frozen=True)
class Protect:
    """kinds: those of preprocess/protect/kinds.py to look for; empty: all. tags: other tags, by kind."""

    kinds: List[str] = field(default_factory=list)
    tags: Dict[str, str] = field(default_factory=dict)

    def open(self) -> Apply:
        if unknown := [name for name in [*self.kinds, *self.tags] if name not in KINDS]:
            raise ValueError(f"step protect: no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
        chosen = [(name, KINDS[name]) for name in KINDS if not self.kinds or name in self.kinds]
        tagged = [(name, dataclasses.replace(kind, tag=self.tags.get(name, kind.tag))) for name, kind in chosen]
        if wrong := [kind.tag for _, kind in tagged if not _TAG.fullmatch(kind.tag)]:
            raise ValueError(
                f"step protect: tag {wrong[0]!r}; a tag has 1 to 19 characters, none of them a digit, a space or one "
                f"of @:=-, or it might be scrubbed itself"
            )

        def one(document: Document, tally: Tally) -> Document:
            text, found = scrub(document.text, tagged)
            for name in sorted(found):
                tally.change(name)
            return dataclasses.replace(document, text=text) if found else document

        return each(one)


def scrub(text: str, kinds: List[Tuple[str, Kind]]) -> Tuple[str, Set[str]]:
    """-> text with tags, the kinds that were found. It ends: what is replaced has a digit, @ or colon, and a tag has
    none; or it is longer than a tag.
    """
    found: Set[str] = set()
    while spans := _spans(text, kinds):
        parts, done = [], 0
        for start, end, name, tag in sorted(spans):
            parts += [text[done:start], tag]
            done = end
            found.add(name)
        text = "".join([*parts, text[done:]])
    return text, found


def _spans(text: str, kinds: List[Tuple[str, Kind]]) -> List[Tuple[int, int, str, str]]:
    """(start, end, kind, tag) of what is found, apart from one another: of two that overlap, the kind that is first."""
    places, taken = Places(text), bytearray(len(text))
    spans: List[Tuple[int, int, str, str]] = []
    for name, kind in kinds:
        for begin, end in kind.where(places):
            for match in kind.pattern.finditer(text, begin, end):
                start, stop = match.span(1 if match.lastindex else 0)
                if taken.find(1, start, stop) < 0 and kind.check(match):
                    taken[start:stop] = b"\1" * (stop - start)
                    spans.append((start, stop, name, kind.tag))
    return spans
