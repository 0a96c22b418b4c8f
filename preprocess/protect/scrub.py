"""Step `protect`: personal data and secrets -> a tag for each kind.

A tag says what was there and nothing else, so a document becomes the same whatever stands before it in a corpus, in
whichever shard; and scrubbing until nothing is found makes a second time change nothing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Dict, List, Set, Tuple

from preprocess.document import Document
from preprocess.pipeline import Apply, Tally, each
from preprocess.protect.kinds import KINDS, Kind
from preprocess.protect.places import Places


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
        for name, kind in tagged:
            if any(match for _, other in tagged for match in other.pattern.finditer(kind.tag) if other.check(match)):
                raise ValueError(
                    f"step protect: the tag {kind.tag!r} of {name} would itself be scrubbed; choose another"
                )

        def one(document: Document, tally: Tally) -> Document:
            text, found = scrub(document.text, tagged)
            for name in sorted(found):
                tally.change(name)
            return dataclasses.replace(document, text=text) if found else document

        return each(one)


def scrub(text: str, kinds: List[Tuple[str, Kind]]) -> Tuple[str, Set[str]]:
    """-> text with tags, the kinds that were found."""
    found: Set[str] = set()
    while True:
        before, places = text, Places(text)
        for name, kind in kinds:
            changed = _replaced(kind, places)
            if changed != places.text:
                found.add(name)
                places = Places(changed)
        text = places.text
        if text == before:
            return text, found


def _replaced(kind: Kind, places: Places) -> str:
    text, parts, done = places.text, [], 0
    for begin, end in kind.where(places):
        for match in kind.pattern.finditer(text, begin, end):
            if kind.check(match):
                group = 1 if match.lastindex else 0
                parts += [text[done : match.start(group)], kind.tag]
                done = match.end(group)
    return "".join([*parts, text[done:]]) if parts else text
