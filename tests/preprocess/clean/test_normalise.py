"""Each change of `normalise`, that it is counted, and that a second time changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from preprocess.document import Document
from tests.preprocess.clean.conftest import through

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize(
    "text, left, changed",
    [
        ("a\u0000b", "ab", "controls"),  # D17
        ("a\u0007b\x81", "ab", "controls"),
        ("one\ttab\n", "one\ttab\n", None),
        ("a\r\nb\rc\u2028e", "a\nb\nc\ne", "line ends"),
        ("a\u2029b\x0cc", "a\nb\nc", "line ends"),
        ("\ufeffone \ufeff two", "one  two", "byte order marks"),  # D13
        ("zero\u200bwidth so\u00adft", "zerowidth soft", "zero width"),
        ("a\u200db", "ab", "zero width"),  # D17
        (FAMILY, FAMILY, None),
        ("می\u200cخواهم", "می\u200cخواهم", None),
        ("क्\u200dष", "क्\u200dष", None),
        ("e\u0301", "é", "nfc"),
        ("schÃ¶n, itâ€™s", "schön, it’s", "mojibake"),
        ("“quotes” ﬁ ｆｕｌｌ №", "“quotes” ﬁ ｆｕｌｌ №", None),
        ("plain text, nothing to do", "plain text, nothing to do", None),
    ],
)
def test_what_changes_and_is_counted(text, left, changed):
    document, counts = through("normalise", text)
    assert document.text == left and counts == ({changed: 1} if changed else {})


@given(
    st.text(
        alphabet=st.one_of(st.characters(), st.sampled_from("\r\n\u200d\u200c\ufeffÃ¶â€™\u0301\u2028é")), max_size=40
    )
)
@example("Ã\u200dƒÂ¶")
@example("\u200d\u200c\u200d")
def test_a_second_time_changes_nothing(text):
    """Joiners, marks and repairs uncover one another; two runs over a corpus must agree."""
    once, _ = through("normalise", text)
    again, counts = through("normalise", once.text)
    assert again.text == once.text and counts == {}


@pytest.mark.parametrize("switch, text", [("nfc", "e\u0301"), ("controls", "a\0"), ("line_ends", "a\r\n"),
                                          ("byte_order_marks", "\ufeffa"), ("zero_width", "a\u200bb"),
                                          ("mojibake", "Ã¶")])  # fmt: skip
def test_each_is_a_switch(switch, text):
    document, counts = through({"normalise": {switch: False}}, text)
    assert document.text == text and counts == {} and isinstance(document, Document)
