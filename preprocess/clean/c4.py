"""Step `c4`: the rules of Raffel et al. 2020 (T5), section 2.2: which lines of a page stay, and which pages.

The defaults are FineWeb's (Penedo et al. 2024) where it is milder: lines need not end with punctuation, a rule that
alone drops a third of all tokens, and need three words; in C4 as released it is five. Thai and Lao end no sentence with
a mark: set min_sentences to 0 for them.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Pattern, Tuple, Union

from preprocess.clean.lines import QUOTES, SENTENCE_ENDS
from preprocess.clean.words import count
from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Tally, each

_TERMINAL = SENTENCE_ENDS + QUOTES
_ELLIPSES = ("...", "…")
_POLICIES = re.compile(r"terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies", re.I)
_CITATIONS = re.compile(r" ?\[(?:\d{1,3}|edit|citation needed)\]", re.I)
_SENTENCE = re.compile(r"[.!?]+(?=[\s\"'”)]|$)|[。！？]+")


@dataclass(frozen=True)
class C4:
    """min_line_words, min_sentences: shorter lines go, pages of fewer sentences are dropped. bad_words: a file of
    words or phrases, one a line; a page with any is dropped. Wikipedia's citation marks are taken out of lines."""

    terminal_punctuation: bool = False
    min_line_words: int = 3
    min_sentences: int = 3
    javascript: bool = True
    policies: bool = True
    lorem_ipsum: bool = True
    curly_brackets: bool = True
    citations: bool = True
    bad_words: str = ""

    def open(self) -> Apply:
        bad = _bad_words(self.bad_words)

        def one(document: Document, tally: Tally) -> Union[Document, Dropped]:
            lowered = document.text.lower()
            if self.lorem_ipsum and "lorem ipsum" in lowered:
                return Dropped("lorem ipsum")
            if self.curly_brackets and "{" in document.text:
                return Dropped("curly bracket")
            if bad is not None and (found := bad.search(lowered)):
                return Dropped("bad word", found.group())
            text, changes = self._cleaned(document.text)
            if not text.strip():
                return Dropped("no line left")
            if self.min_sentences and (number := len(_SENTENCE.findall(text))) < self.min_sentences:
                return Dropped("few sentences", str(number))
            for what, number in changes.items():
                tally.change(what, number)
            return dataclasses.replace(document, text=text) if changes else document

        return each(one)

    def _cleaned(self, text: str) -> Tuple[str, Counter[str]]:
        """-> what stays, and how many lines were changed or removed, by reason."""
        kept: List[str] = []
        changes: Counter[str] = Counter()
        for line in text.split("\n"):
            if self.citations and "[" in line:
                line, number = _CITATIONS.subn("", line)
                changes.update({"lines without citation marks": 1} if number else {})
            reason = self._why_not(line)
            if reason is None:
                kept.append(line)
            else:
                changes[f"lines removed: {reason}"] += 1
        return "\n".join(kept), changes

    def _why_not(self, line: str) -> Optional[str]:
        """Blank lines stay: they part paragraphs."""
        stripped = line.strip()
        if not stripped:
            return None
        if self.terminal_punctuation and (not stripped.endswith(_TERMINAL) or stripped.endswith(_ELLIPSES)):
            return "no punctuation at the end"
        if self.min_line_words and count(stripped) < self.min_line_words:
            return "too few words"
        if self.javascript and "javascript" in stripped.lower():
            return "javascript"
        return "policy" if self.policies and _POLICIES.search(stripped) else None


def _bad_words(path: str) -> Optional[Pattern[str]]:
    if not path:
        return None
    if not Path(path).is_file():
        raise ValueError(f"step c4: bad_words={path} does not exist; give a file with a word a line")
    found = [line.strip().lower() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    if not found:
        raise ValueError(f"step c4: bad_words={path} is empty; give a file with a word a line")
    return re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, sorted(found))) + r")(?!\w)")
