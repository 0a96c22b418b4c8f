"""One text through one step."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import pytest

from preprocess.document import Document
from preprocess.pipeline import Tally
from preprocess.steps import build


def through(step: Any, text: str, **metadata: Any) -> Tuple[Any, Dict[str, int]]:
    """-> (the document that is left, or the reason why none is, changes)."""
    ((_, made),) = build([step])
    tally = Tally(keep_dropped=True)
    left = made.open()([Document(text, "id", metadata, "f", 1)], tally)
    return (left[0] if left else tally.aside[0][1].reason), dict(tally.changed)


@pytest.fixture
def sentences() -> str:
    """English prose of some 150 different words that no rule minds."""
    return PROSE


PROSE = """\
The harbour had been quiet for most of the winter, and the people who lived above it were glad of that.
Every morning an old woman walked to the end of the pier with a basket of bread for her three sons.
They would have to leave before the tide turned, because the channel is shallow and full of stones.
Nobody could remember a season in which so many boats came home empty, but nobody complained either.

In spring a surveyor arrived from the capital to measure the depth of the water and the height of the wall.
He stayed at the inn, asked polite questions, and wrote down the answers in a small grey book.
When he left he said that the village would be told of his findings by the end of the year.
That promise was kept, although the letter went to a different place and came back twice.
"""
