"""Step `decontaminate`: documents that hold items of evaluation sets, found by runs of words that both have.

GPT-3 (Brown et al. 2020, appendix C) looks for 13 words, Llama 2 and 3 for shorter runs; 13 is the default here.
Words are compared without case, width and punctuation (NFKC, casefold); a Chinese, Japanese or Thai character is a
word. An item of fewer words than a run is looked for whole if it has min_words; a shorter one ("Paris") would be found
everywhere.

Runs are looked up by a hash of 64 bits, one array search for a document; a hit counts when its words are equal too.
"""

from __future__ import annotations

import dataclasses
import json
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple, Union

import numpy as np

from preprocess.document import Document, Dropped
from preprocess.manifest import digest
from preprocess.pipeline import Apply, Tally, each

_SOUTH_EAST_ASIAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_KANA_AND_HAN = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # kana, Han
_ALONE = _SOUTH_EAST_ASIAN + _KANA_AND_HAN
_WORD = re.compile(f"[{_ALONE}]|[^\\W_{_ALONE}]+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Runs = Dict[int, Dict[int, List[Tuple[Tuple[str, ...], str]]]]  # words of a run -> hash -> (words, item)


@dataclass(frozen=True)
class Decontaminate:
    """sets: files of items (jsonl, Parquet, a line of text each; also compressed), or globs of them. fields: those of
    an item that are looked for; empty: all that are text. action: drop; cut (what was found is removed) or flag. What
    was found, with the item as "set:number" and the offsets in the text, is in the metadata, or in the detail of the
    dropped document.
    """

    sets: List[str]
    fields: List[str] = field(default_factory=list)
    ngram: int = 13
    min_words: int = 8
    action: str = "drop"

    def open(self) -> Apply:
        if self.action not in ("drop", "cut", "flag"):
            raise ValueError(f"step decontaminate: action={self.action!r}; it is drop, cut or flag")
        if self.ngram < 2 or self.min_words < 1:
            raise ValueError(f"step decontaminate: ngram={self.ngram}, min_words={self.min_words}; at least 2 and 1")
        runs = _runs(self._items(), self.ngram, self.min_words)
        keys = {size: np.asarray(sorted(found), np.uint64) for size, found in runs.items()}

        def one(document: Document, tally: Tally) -> Union[Document, Dropped]:
            hits = _hits(document.text, runs, keys)
            if not hits:
                return document
            for name in sorted({hit["item"].rsplit(":", 1)[0] for hit in hits}):
                tally.change(f"overlaps {name}")
            if self.action == "drop":
                return Dropped("contaminated", json.dumps(hits))
            text = document.text if self.action == "flag" else _without(document.text, hits)
            return dataclasses.replace(document, text=text, metadata={**document.metadata, "contaminated": hits})

        return each(one)

    def state(self) -> str:
        """Of the files, which decide too."""
        return digest([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in self._files()])

    def _files(self) -> List[Path]:
        from preprocess import readers

        return [Path(one.path) for one in readers.resolve(self.sets)]

    def _items(self) -> Iterator[Tuple[str, str]]:
        """("set:number", text) of each item. Raises ValueError, naming the file, when there are none in it."""
        from preprocess import readers

        if not self.sets:
            raise ValueError("step decontaminate: sets is empty; name files of evaluation items")
        for path in self._files():
            number = 0
            whole = readers.Part(str(path), 0, path.stat().st_size)
            for chunk in readers.chunks(whole):
                for item in readers.parse(chunk, readers.Keys("", "")):
                    if isinstance(item, readers.Bad):
                        raise ValueError(f"step decontaminate: {path}, item {number + 1}: {item.why}")
                    if isinstance(item, Document):
                        number += 1
                        for text in self._texts(item):
                            yield f"{path.name.split('.')[0]}:{number}", text
            if not number:
                raise ValueError(f"step decontaminate: {path} has no items; correct sets")

    def _texts(self, item: Document) -> List[str]:
        """The fields one by one, and together: a question may be short, and stand before its answer."""
        named = {name: item.metadata.get(name) for name in self.fields} if self.fields else item.metadata
        found = [text for value in named.values() for text in _strings(value)] + ([item.text] if item.text else [])
        return [*found, " ".join(found)] if len(found) > 1 else found


def _strings(value: Any) -> List[str]:
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [text for one in inside for text in _strings(one)]


def _words(text: str) -> List[Tuple[str, int, int]]:
    """(word, start, end) in the text as it is; a word whose normal form is several counts as those, in one place."""
    found = []
    for match in _WORD.finditer(text):
        word = match.group()
        if not word.isascii():
            word = unicodedata.normalize("NFKC", word).casefold()
        found.append((word.lower(), match.start(), match.end()))
    return found


def _hashes(words: Sequence[str], sizes: Sequence[int]) -> Dict[int, np.ndarray]:
    """uint64 of each run of so many words."""
    values = np.fromiter((_hash(word) for word in words), np.uint64, len(words))
    found, runs = {}, values
    for size in range(1, max(sizes, default=0) + 1):
        if size > 1:
            runs = runs[:-1] * _MULTIPLIER + values[size - 1 :] if len(runs) > 1 else values[:0]
        if size in sizes:
            found[size] = runs
    return found


def _hash(word: str) -> int:
    """Of this process: items and documents meet in one."""
    return hash(word) & 0xFFFFFFFFFFFFFFFF


def _runs(items: Iterator[Tuple[str, str]], ngram: int, min_words: int) -> Runs:
    runs: Runs = {}
    for name, text in items:
        words = [word for word, _, _ in _words(text)]
        size = min(len(words), ngram)
        if size < min(min_words, ngram):
            continue
        for place, value in enumerate(_hashes(words, [size])[size].tolist()):
            run = tuple(words[place : place + size])
            known = runs.setdefault(size, {}).setdefault(value, [])
            if all(run != other for other, _ in known):
                known.append((run, name))
    return runs


def _hits(text: str, runs: Runs, keys: Dict[int, np.ndarray]) -> List[Dict[str, Any]]:
    """Overlapping runs of the same item together: {"item", "start", "end"} in characters, by start."""
    found = _words(text)
    words = [word for word, _, _ in found]
    hits: List[Dict[str, Any]] = []
    for size, hashes in _hashes(words, list(keys)).items():
        for place in np.flatnonzero(np.isin(hashes, keys[size])).tolist():
            for run, item in runs[size][int(hashes[place])]:
                if run == tuple(words[place : place + size]):
                    hits.append({"item": item, "start": found[place][1], "end": found[place + size - 1][2]})
    return _joined(hits)


def _joined(hits: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    joined: List[Dict[str, Any]] = []
    for hit in sorted(hits, key=lambda hit: (hit["item"], hit["start"])):
        if joined and joined[-1]["item"] == hit["item"] and hit["start"] <= joined[-1]["end"]:
            joined[-1]["end"] = max(joined[-1]["end"], hit["end"])
        else:
            joined.append(dict(hit))
    return sorted(joined, key=lambda hit: (hit["start"], hit["item"]))


def _without(text: str, hits: List[Dict[str, Any]]) -> str:
    """A line end is put where something was cut, so that no new run of words comes about."""
    parts, end = [], 0
    for hit in hits:
        if hit["start"] > end:
            parts.append(text[end : hit["start"]])
        end = max(end, hit["end"])
    return "\n".join([*parts, text[end:]])
