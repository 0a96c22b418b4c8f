"""A text -> its sentences, for objectives that are given them one by one. Joined again they are the text."""

from __future__ import annotations

import re
from typing import List

# A full stop and what closes it, then white space; in Chinese and Japanese nothing follows it. An abbreviation or a
# number is cut too where white space and a capital letter follow: a rule that needs no model and no language.
# Looking back keeps it linear: a row of full stops is tried once, not once for each of them.
_END = re.compile(
    r"""(?<![.!?])[.!?]+["'”’)\]]*\s+(?=["'“‘(\[]*[^\W\da-z_])|(?<![。！？])[。！？]+[”’」』）]*\s*|\n\s*\n\s*"""
)


def split(text: str) -> List[str]:
    ends = [match.end() for match in _END.finditer(text)]
    bounds = [0, *ends, len(text)]
    return [text[start:end] for start, end in zip(bounds, bounds[1:]) if start < end]
