"""A variant of a document with some words replaced by synonyms (Wei & Zou 2019, EDA)."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple, Union

from preprocess.augment import checks, share
from preprocess.augment.share import Refused, Variants
from preprocess.augment.thesaurus import Thesaurus, read
from preprocess.document import Document
from preprocess.pipeline import Apply

# Words of prose: between white space and punctuation, so not the parts of names, addresses and code.
_WORD = re.compile(r"""(?<![^\s("'“‘])[^\W\d_]+(?=[.,;:!?)"'”’]*(?:\s|\Z))""")
_SENTENCE_END = re.compile(r"""(?:\A|[.!?]["'”’)]*\s|\n)[\s("'“‘]*\Z""")
_BEFORE = 8  # characters in which the end of a sentence shows


@dataclass(frozen=True)
class Synonyms:
    """Up to `rate` of the words are replaced, in documents of `language` up to `max_share` of what comes out.

    Only words in the form in which the thesaurus has them, of at least `min_letters`; no names, no numbers. A variant
    is refused when its different words have less than min_overlap or more than max_overlap in common with those of the
    original (Jaccard), or when its language is not told to be the same.
    """

    thesaurus: str = "/usr/share/wordnet"
    max_share: float = 0.1
    seed: int = 0
    rate: float = 0.1  # as Wei & Zou 2019 advise for all but small sets
    min_letters: int = 4
    min_overlap: float = 0.5
    max_overlap: float = 0.99
    language: str = "en"
    check_language: bool = True

    def open(self) -> Apply:
        share.check("synonyms", self.max_share)
        if not 0 < self.rate <= 1:
            raise ValueError(f"step synonyms: rate={self.rate}; it must be above 0 and at most 1")
        if not 0 <= self.min_overlap < self.max_overlap <= 1:
            raise ValueError(
                f"step synonyms: min_overlap={self.min_overlap}, max_overlap={self.max_overlap}; they must ascend from "
                f"0 to 1"
            )
        thesaurus = read(self.thesaurus)
        language = checks.open_language("synonyms") if self.check_language else None

        def make(documents: List[Document]) -> Variants:
            return [self._variant(document, thesaurus, language) for document in documents]

        return share.augment("synonyms", self.max_share, self.seed, make)

    def _variant(
        self, document: Document, thesaurus: Thesaurus, language: Optional[checks.Language]
    ) -> Union[str, Refused]:
        if language and language(document.text) != self.language:
            return Refused("another language")
        text = self._replaced(document, thesaurus)
        if text is None:
            return Refused("no word to replace")
        overlap = checks.jaccard(document.text, text)
        if not self.min_overlap <= overlap <= self.max_overlap:
            return Refused("too much changed" if overlap < self.min_overlap else "too little changed")
        if language and language(text) != self.language:
            return Refused("language changed")
        return text

    def _replaced(self, document: Document, thesaurus: Thesaurus) -> Optional[str]:
        text, found = document.text, list(_WORD.finditer(document.text))
        draw = random.Random(f"{self.seed}:{document.id}")
        picks: Dict[str, str] = {}  # the same word gets the same synonym throughout a document
        replaced: List[Tuple[int, int, str]] = []
        places = list(range(len(found)))
        draw.shuffle(places)
        for place in places:
            if len(replaced) == round(self.rate * len(found)):
                break
            word, (start, end) = found[place].group(), found[place].span()
            if len(word) < self.min_letters or word.lower() not in thesaurus or not _is_plain(text, word, start):
                continue
            pick = picks.setdefault(word.lower(), draw.choice(thesaurus[word.lower()]))
            article = place > 0 and found[place - 1].group().lower() in ("a", "an")
            if not article or _begins_with_vowel(pick) == _begins_with_vowel(word):
                replaced.append((start, end, pick.capitalize() if word[0].isupper() else pick))
        for start, end, pick in sorted(replaced, reverse=True):
            text = text[:start] + pick + text[end:]
        return text if replaced else None


def _is_plain(text: str, word: str, start: int) -> bool:
    """In small letters, or with a capital one only because a sentence begins: a name is left alone."""
    if word.islower():
        return True
    before = text[max(0, start - _BEFORE) : start]
    return word[1:].islower() and (not before.strip() or _SENTENCE_END.search(before) is not None)


def _begins_with_vowel(word: str) -> bool:
    return word[0].lower() in "aeiou"
