"""Words and what may stand for them: from a folder of WordNet, or a list of one's own.

Of WordNet (format: wndb(5WN), version 3.0) only what needs no understanding is taken: words of one part of speech, in
one sense, that are no form of another word (morphy(7WN)) and no name; and of their synonyms those that mean this before
anything else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

Thesaurus = Dict[str, Tuple[str, ...]]  # lower-case word: synonyms, sorted

_PARTS = ("noun", "verb", "adj", "adv")
_ENDINGS = {  # of an inflected form -> of the word itself; morphy's rules of detachment
    "noun": {"s": "", "ses": "s", "xes": "x", "zes": "z", "ches": "ch", "shes": "sh", "men": "man", "ies": "y"},
    "verb": {"s": "", "ies": "y", "es": "", "ed": "", "ing": ""},
    "adj": {"er": "", "est": ""},
    "adv": {},
}
_SILENT = ("ed", "ing", "er", "est", "es")  # these endings may have taken an e with them


def read(path: str) -> Thesaurus:
    """A folder of WordNet, a .json file {word: [synonyms]}, or lines `word TAB synonym, synonym`.

    Raises ValueError when there is no such thing, or nothing in it.
    """
    given = Path(path)
    if not path or not given.exists():
        raise ValueError(
            f"step synonyms: thesaurus={path!r} does not exist; give WordNet's folder (Debian's wordnet-base: "
            f"/usr/share/wordnet), or a .json or tab-separated list of words"
        )
    found = _wordnet(given) if given.is_dir() else _listed(given)
    if not found:
        raise ValueError(f"step synonyms: thesaurus={path} has no word with a synonym")
    return found


def _listed(path: Path) -> Thesaurus:
    text = path.read_text(encoding="utf-8")
    try:
        pairs = json.loads(text).items() if path.suffix == ".json" else _lines(text)
        listed = [(str(word).lower(), [str(synonym).strip() for synonym in synonyms]) for word, synonyms in pairs]
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"step synonyms: thesaurus={path}: {error}; write {{word: [synonyms]}} as JSON") from None
    kept = {word: tuple(sorted({s for s in synonyms if s and s != word})) for word, synonyms in listed}
    return {word: synonyms for word, synonyms in kept.items() if synonyms}


def _lines(text: str) -> Iterator[Tuple[str, List[str]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        word, tab, synonyms = line.partition("\t")
        if line.strip() and not tab:
            raise ValueError(f"line {number} has no tab")
        if tab:
            yield word.strip(), synonyms.split(",")


def _wordnet(folder: Path) -> Thesaurus:
    if missing := [f"{kind}.{part}" for part in _PARTS for kind in ("index", "data") if not _file(folder, kind, part)]:
        raise ValueError(f"step synonyms: thesaurus={folder} has no {missing[0]}; give the folder of WordNet's files")
    senses = {part: dict(_index(folder / f"index.{part}")) for part in _PARTS}
    irregular = {word for part in _PARTS for word in _irregular(folder / f"{part}.exc")}

    def is_plain(word: str) -> bool:
        """Of one part of speech, and no form of a word of any."""
        forms = any(stem in senses[part] for part in _PARTS for stem in _stems(word, part))
        return sum(word in senses[part] for part in _PARTS) == 1 and word not in irregular and not forms

    found: Thesaurus = {}
    for part in _PARTS:
        synsets = dict(_synsets(folder / f"data.{part}"))
        for word, (sense, *more) in senses[part].items():
            if more or not is_plain(word):
                continue
            others = (one for one in synsets[sense] if one != word)
            synonyms = tuple(sorted(one for one in others if senses[part].get(one, [None])[0] == sense))
            if synonyms and word in synsets[sense]:  # it may stand there as a name, Paris, or as galore(ip)
                found[word] = synonyms
    return found


def _file(folder: Path, kind: str, part: str) -> bool:
    return (folder / f"{kind}.{part}").is_file()


def _records(path: Path) -> Iterator[List[str]]:
    """Fields of each line; those that begin with a space are the licence."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.startswith(" "):
                yield line.split("|", 1)[0].split()


def _index(path: Path) -> Iterator[Tuple[str, List[str]]]:
    """Lemmas of letters -> offsets of their synsets: the last fields, as many as the third one says."""
    for fields in _records(path):
        if fields[0].isalpha():
            yield fields[0], fields[-int(fields[2]) :]


def _synsets(path: Path) -> Iterator[Tuple[str, List[str]]]:
    """Offset -> words as they are written; `galore(ip)` says where an adjective may stand.

    None of those with a pointer ;u to their usage: slang, slurs, what is archaic.
    """
    for fields in _records(path):
        count = int(fields[3], 16)
        words = fields[4 : 4 + 2 * count : 2]
        yield fields[0], [word for word in words if "(" not in word and ";u" not in fields]


def _irregular(path: Path) -> Set[str]:
    return {fields[0] for fields in _records(path)} if path.is_file() else set()


def _stems(word: str, part: str) -> Iterator[str]:
    """Words that this one may be a form of."""
    endings: Dict[str, Any] = _ENDINGS[part]
    for ending, own in endings.items():
        if word.endswith(ending):
            stem = word[: -len(ending)] + own
            yield stem
            if ending in _SILENT:
                yield stem + "e"
            if len(stem) > 2 and stem[-1] == stem[-2]:
                yield stem[:-1]  # stopped: stop
