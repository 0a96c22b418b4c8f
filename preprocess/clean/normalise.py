"""One way to write a text: Unicode's NFC, no mojibake, no invisible characters, lines that end in a line feed.

Each repair is a switch and counted by documents. The repairs follow one another until none changes anything more, so
that normalising twice is normalising once.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from dataclasses import dataclass
from typing import Callable, Dict

from preprocess.clean import joiners
from preprocess.clean.mojibake import repair
from preprocess.document import Document
from preprocess.pipeline import Apply, Tally, each

_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")  # those of Unicode's newline guidelines
# Not the tabulator. Surrogates and noncharacters are no text: a lone surrogate cannot even be written as UTF-8.
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_QUOTES = str.maketrans("‘’‚‛“”„‟", "''''\"\"\"\"")


@dataclass(frozen=True)
class Normalise:
    """The switches.

    mojibake: UTF-8 that was once read as another encoding is read rightly, by ftfy's rules; quotes stay as they are.
    line_ends: CR LF, CR, VT, FF, NEL and Unicode's separators become LF.
    controls: C0 and C1 are removed, and lone surrogates and noncharacters; the tabulator stays.
    byte_order_marks: U+FEFF is removed, wherever it stands.
    zero_width: zero-width and soft-hyphen characters are removed; joiners stay where they carry meaning
    (clean/joiners.py), and so do marks of the direction of writing.
    straight_quotes: typographic quotes become ' and ".
    """

    mojibake: bool = True
    line_ends: bool = True
    controls: bool = True
    byte_order_marks: bool = True
    zero_width: bool = True
    straight_quotes: bool = False
    nfc: bool = True

    def open(self) -> Apply:
        repairs: Dict[str, Callable[[str], str]] = {
            "mojibake": repair,
            "line_ends": lambda text: _LINE_ENDS.sub("\n", text),
            "controls": lambda text: _CONTROLS.sub("", text),
            "byte_order_marks": lambda text: text.replace("\ufeff", ""),
            "zero_width": joiners.remove,
            "straight_quotes": lambda text: text.translate(_QUOTES),
            "nfc": lambda text: unicodedata.normalize("NFC", text),
        }
        chosen = {name: work for name, work in repairs.items() if getattr(self, name)}
        if not chosen:
            raise ValueError("step normalise: every switch is false, it would do nothing; leave the step out")

        def normalise(document: Document, tally: Tally) -> Document:
            text, done = document.text, set()
            before = None
            while text != before:
                before = text
                for name, work in chosen.items():
                    repaired = work(text)
                    if repaired != text:
                        done.add(name)
                        text = repaired
            if not done:
                return document
            for name in chosen:
                if name in done:
                    tally.change(name.replace("_", " "))
            return dataclasses.replace(document, text=text)

        return each(normalise)
