"""Lines and paragraphs that stand in the corpus already."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.dedup.lines import DuplicateLines
from tests.preprocess.dedup.compared import compare, cut, documents

LONG = ["the first long line of all, well above the limit", "another line that is long enough to count", "short"]


@given(
    texts=st.lists(st.lists(st.sampled_from([*LONG, "", "  "]), max_size=6).map("\n".join), max_size=12),
    places=st.lists(st.integers(0, 12), max_size=4),
    memory=st.sampled_from([1, 1 << 20]),
)
def test_the_first_of_each_line_stays_and_blank_and_short_ones_always(tmp_path_factory, texts, places, memory):
    """Whatever the parts and the memory; against a plain loop. (D22 for lines.)"""
    kept, tally = compare(tmp_path_factory.mktemp("round"), DuplicateLines(), cut(documents(texts), places), memory)
    seen, expected = set(), {}
    for number, text in enumerate(texts):
        lines = []
        for line in text.splitlines(keepends=True):
            if len(line.strip()) < 30 or line.strip() not in seen:
                lines.append(line)
            seen.add(line.strip())
        expected[f"d{number}"] = "".join(lines)
    changed = {f"d{n}" for n, text in enumerate(texts) if expected[f"d{n}"] != text}
    left = {id: text for id, text in expected.items() if text.strip() or id not in changed}
    assert {document.id: document.text for document in kept} == left
    assert sum(tally.dropped.values()) == len(texts) - len(left)


def test_paragraphs_go_whole(tmp_path):
    a, b, c = (f"paragraph {name} has a line of some length\nand a second one\n" for name in "abc")
    kept, tally = compare(tmp_path, DuplicateLines(unit="paragraph"), [documents([a + "\n" + b, c + "\n\n" + a])])
    assert [document.text for document in kept] == [a + "\n" + b, c + "\n\n"]
    assert tally.changed == {"duplicate paragraphs": 1}


@pytest.mark.parametrize("wrong, said", [({"unit": "word"}, "line or paragraph"), ({"min_characters": 0}, "give 1")])
def test_wrong_settings(wrong, said):
    with pytest.raises(ValueError, match=said):
        DuplicateLines(**wrong).open()
