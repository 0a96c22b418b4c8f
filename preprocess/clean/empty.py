"""Texts of nothing but white space.

As a lone end-of-document token such a record would teach a model to end a document right after the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Tally, each


@dataclass(frozen=True)
class Empty:
    def open(self) -> Apply:
        return each(_drop)


def _drop(document: Document, tally: Tally) -> Union[Document, Dropped]:
    return document if document.text and not document.text.isspace() else Dropped("empty")
