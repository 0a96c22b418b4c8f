"""Documents, and a language that is told without a model."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest

from preprocess.augment import checks
from preprocess.document import Document


@pytest.fixture
def english_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts with the word `nicht` are German."""
    monkeypatch.setattr(checks, "open_language", lambda step: lambda text: "de" if "nicht" in text else "en")


def documents(*texts: str, **metadata: Any) -> List[Document]:
    return [Document(text, f"d{place}", dict(metadata), "in.jsonl", place + 1) for place, text in enumerate(texts)]


def texts_of(found: List[Document]) -> Callable[[str], str]:
    by_id = {document.id: document.text for document in found}
    return by_id.__getitem__
