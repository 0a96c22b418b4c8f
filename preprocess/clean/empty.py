"""Texts of nothing but white space.

As a lone end-of-document token such a record would teach a model to end a document right after the last one.
"""

from __future__ import annotations

from typing import Union

from preprocess.document import Document, Dropped


def drop_empty(document: Document) -> Union[Document, Dropped]:
    return document if document.text and not document.text.isspace() else Dropped("empty")
