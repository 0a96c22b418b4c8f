"""Step `decontaminate`: documents that hold items of evaluation sets, found by runs of words that both have.

GPT-3 (Brown et al. 2020, appendix C) looks for 13 words, Llama 2 and 3 for shorter runs; 13 is the default here.
Words are compared without case, width and punctuation (NFKC, casefold); a Chinese, Japanese or Thai character is a
word. An item of fewer words than a run is looked for whole if it has min_words; a shorter one ("Paris") would be found
everywhere. Of several items with the same run the first is named.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Sequence, Tuple, TypedDict, Union

import numpy as np

from preprocess.document import Document, Dropped
from preprocess.manifest import digest
from preprocess.pipeline import Apply, Tally, each

_SOUTH_EAST_ASIAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_KANA_AND_HAN = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_ALONE = _SOUTH_EAST_ASIAN + _KANA_AND_HAN
_LETTERS, _MARKS = f"[^\\W_{_ALONE}]", "[\u0300-\u036f]"  # an accent may stand apart from its letter
_WORD = re.compile(f"[{_ALONE}]|{_LETTERS}+(?:{_MARKS}+{_LETTERS}*)*")
_ASCII_WORD = re.compile("[a-z0-9]+")  # the same words where all is ASCII, twice as fast
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Run = Tuple[int, int, int]  # place of its first word, number of words, item


class Hit(TypedDict):
    """item: its number in the file, from 1. start, end: in characters of the text as it was."""

    benchmark: str
    item: int
    start: int
    end: int


@dataclass(frozen=True)
class Decontaminate:
    """sets: files of items (jsonl, Parquet, a line of text each; also compressed), or globs of them. fields: those of
    an item that are looked for; empty: all that are text. action: drop; cut (what was found is removed, and what comes
    about by that) or flag. What was found, with the offsets in the text, is in metadata["contaminated"], or in the
    detail of the dropped document. A benchmark is named after its file, with folders where names are equal.
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
        index = _Index(self._items(), self.ngram)

        def one(document: Document, tally: Tally) -> Union[Document, Dropped]:
            if not (found := index.find(words := _words(document.text))):
                return document
            hits = _hits(document.text, words, found, index, self.action == "cut")
            for name in sorted({hit["benchmark"] for hit in hits}):
                tally.change(f"overlaps {name}")
            text = _without(document.text, hits) if self.action == "cut" else document.text
            if self.action == "drop" or not _WORD.search(text):
                return Dropped("contaminated", json.dumps(hits))
            before = document.metadata.get("contaminated", [])
            noted = {**document.metadata, "contaminated": before + [hit for hit in hits if hit not in before]}
            return dataclasses.replace(document, text=text, metadata=noted)

        return each(one)

    def state(self) -> str:
        """Of the files, which decide too."""
        from preprocess import readers

        return digest([(one.path, one.bytes, one.stamp) for one in readers.resolve(self.sets)])

    def _items(self) -> Iterator[Tuple[str, int, List[str]]]:
        """(benchmark, number, words) to look for. Raises ValueError, naming the file, when there are none in it."""
        from preprocess import readers

        if not self.sets:
            raise ValueError("step decontaminate: sets is empty; name files of evaluation items")
        files = readers.resolve(self.sets)
        for file, name in zip(files, _names([one.path for one in files])):
            items = used = 0
            for record in _records(readers.Part(file.path, 0, file.bytes)):
                items += 1
                for words in self._texts(record):
                    used += 1
                    yield name, items, words
            if not used:
                least, where = min(self.min_words, self.ngram), f" in fields {self.fields}" if self.fields else ""
                what = f"{items} items, none with {least} words{where}" if items else "no items"
                raise ValueError(f"step decontaminate: {file.path} has {what}; correct sets, fields or min_words")

    def _texts(self, record: Dict[str, Any]) -> Iterator[List[str]]:
        """The fields together, and the short ones by themselves: a question may stand before its answer, or alone."""
        chosen = [record.get(name) for name in self.fields] if self.fields else list(record.values())
        found = [_words(text) for text in _strings(chosen)]
        whole = [word for words in found for word in words]
        if len(found) > 1:
            yield from (words for words in found if self.min_words <= len(words) < self.ngram)
        if len(whole) >= min(self.min_words, self.ngram):
            yield whole


def _records(part: Any) -> Iterator[Dict[str, Any]]:
    from preprocess import readers

    number = 0
    for chunk in readers.chunks(part):
        for item in readers.parse(chunk, readers.Keys("", "")):
            number += 1
            if isinstance(item, readers.Bad):
                raise ValueError(f"step decontaminate: {part.path}, item {number}: {item.why}")
            if isinstance(item, Document):  # a file of plain text is one
                yield from ({"text": line} for line in item.text.split("\n") if line.strip())
                if item.metadata:
                    yield item.metadata


def _names(paths: Sequence[str]) -> List[str]:
    """Names of the files without endings; as many folders before them as make them different."""
    parts = [[*path.split("/")[:-1], path.split("/")[-1].split(".")[0]] for path in paths]
    deepest = max(map(len, parts))
    for depth in range(1, deepest + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return list(paths)


def _strings(value: Any) -> List[str]:
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [text for one in inside for text in _strings(one)]


def _words(text: str) -> List[str]:
    """In their normal form, as many as _WORD finds."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return [word.lower() if word.isascii() else _normal(word) for word in _WORD.findall(text)]


@functools.lru_cache(1 << 16)
def _normal(word: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())


_hash = hash  # of this process: items and documents meet in one


def _hashes(words: Sequence[str], sizes: Sequence[int]) -> Iterator[Tuple[int, np.ndarray]]:
    """(size, uint64 of each run of so many words), by size."""
    values = np.fromiter(map(_hash, words), np.int64, len(words)).view(np.uint64)
    runs = values
    for size in range(1, max(sizes, default=0) + 1):
        if size > 1:
            runs = runs[:-1] * _MULTIPLIER + values[size - 1 :]
        if size in sizes:
            yield size, runs
        if len(runs) <= 1:
            return


class _Index:
    """The runs of all items: 16 bytes each, and 16 to 32 of a table (Bloom 1970) that rules out most others at once."""

    def __init__(self, items: Iterator[Tuple[str, int, List[str]]], ngram: int) -> None:
        self.items: List[Tuple[str, int]] = []
        self.words: List[List[str]] = []
        known: Dict[str, str] = {}
        for name, number, words in items:
            self.items.append((name, number))
            self.words.append([known.setdefault(word, word) for word in words])
        self.sizes = [min(len(words), ngram) for words in self.words]
        runs = [next(runs for _, runs in _hashes(words, [size])) for words, size in zip(self.words, self.sizes)]
        lengths = [len(one) for one in runs]
        keys = np.concatenate(runs)
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        self.owners = np.repeat(np.arange(len(runs), dtype=np.int32), lengths)[order]
        self.places = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])[order]
        self.shift = np.uint64(64 - (16 * len(keys)).bit_length())
        self.begins = np.zeros(1 << (64 - int(self.shift)), bool)
        self.begins[keys >> self.shift] = True
        self.begins[keys * _MULTIPLIER >> self.shift] = True

    def find(self, words: List[str]) -> List[Run]:
        """The runs that are in words. Equal words count, not equal hashes."""
        found = []
        for size, hashes in _hashes(words, sorted(set(self.sizes))):
            likely = np.flatnonzero(self.begins[hashes >> self.shift])
            likely = likely[self.begins[hashes[likely] * _MULTIPLIER >> self.shift]]
            first = np.searchsorted(self.keys, hashes[likely])
            equal = self.keys[np.minimum(first, len(self.keys) - 1)] == hashes[likely]
            likely, first = likely[equal], first[equal]
            last = np.searchsorted(self.keys, hashes[likely], "right")
            for place, begin, end in zip(likely.tolist(), first.tolist(), last.tolist()):
                for entry in range(begin, end):
                    owner, there = int(self.owners[entry]), int(self.places[entry])
                    run = self.words[owner][there : there + self.sizes[owner]]
                    if run == words[place : place + size]:
                        found.append((place, size, owner))
                        break
        return found


def _hits(text: str, words: List[str], found: List[Run], index: _Index, cut: bool) -> List[Hit]:
    """Where the runs stand in the text. If they are cut, words come to stand together, and are looked at again."""
    spans = [match.span() for match in _WORD.finditer(text)]
    left, hits = list(range(len(words))), []
    while found:
        gone = set()
        for place, size, owner in found:
            name, number = index.items[owner]
            run = left[place : place + size]
            gone.update(run)
            for first, last in _stretches(run):
                hits.append(Hit(benchmark=name, item=number, start=spans[first][0], end=spans[last][1]))
        left = [word for word in left if word not in gone]
        found = index.find([words[word] for word in left]) if cut else []
    return _joined(hits)


def _stretches(numbers: List[int]) -> Iterator[Tuple[int, int]]:
    """(first, last) of those that follow one another."""
    ends = [place for place in range(1, len(numbers)) if numbers[place] != numbers[place - 1] + 1]
    for begin, end in zip([0, *ends], [*ends, len(numbers)]):
        yield numbers[begin], numbers[end - 1]


def _joined(hits: List[Hit]) -> List[Hit]:
    """Overlapping ones of an item together; by start."""
    joined: List[Hit] = []
    for hit in sorted(hits, key=lambda hit: (hit["benchmark"], hit["item"], hit["start"])):
        last = joined[-1] if joined else hit
        if (
            joined
            and (last["benchmark"], last["item"]) == (hit["benchmark"], hit["item"])
            and hit["start"] <= last["end"]
        ):
            last["end"] = max(last["end"], hit["end"])
        else:
            joined.append(hit)
    return sorted(joined, key=lambda hit: (hit["start"], hit["benchmark"], hit["item"]))


def _without(text: str, hits: List[Hit]) -> str:
    """A line end is put where something was cut."""
    parts, end = [], 0
    for hit in hits:
        if hit["start"] > end:
            parts.append(text[end : hit["start"]])
        end = max(end, hit["end"])
    return "\n".join([*parts, text[end:]])
