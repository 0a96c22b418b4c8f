"""Texts whose letters are of other scripts than the wanted ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Union

from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Tally, each


@dataclass(frozen=True)
class Script:
    """scripts: by their names or codes in Unicode: Latin or Latn; Japanese needs Han, Hiragana and Katakana.
    min_share: of the letters (Unicode category L) that must be of these; a text without letters has share 0."""

    scripts: List[str] = field(default_factory=lambda: ["Latin"])
    min_share: float = 0.5

    def open(self) -> Apply:
        import regex

        if not self.scripts or not 0 < self.min_share <= 1:
            raise ValueError(
                f"step script: scripts={self.scripts}, min_share={self.min_share}; name a script, and a share above 0 "
                "and at most 1"
            )
        for name in self.scripts:
            try:
                regex.compile(rf"\p{{Script={name}}}")
            except regex.error:
                raise ValueError(f"step script: Unicode has no script {name!r}; see its Scripts.txt") from None
        inside = "".join(rf"\p{{Script={name}}}" for name in self.scripts)
        letters = regex.compile(r"\p{L}+")
        wanted = regex.compile(rf"(?V1)[\p{{L}}&&[{inside}]]+")
        latin_is_wanted = wanted.match("a") is not None

        def one(document: Document, tally: Tally) -> Union[Document, Dropped]:
            text = document.text
            if latin_is_wanted and text.isascii() and letters.search(text):
                return document
            number = sum(map(len, letters.findall(text)))
            share = sum(map(len, wanted.findall(text))) / number if number else 0.0
            return document if share >= self.min_share else Dropped("script", f"{share:.3f}")

        return each(one)
