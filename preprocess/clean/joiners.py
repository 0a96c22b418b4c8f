"""Characters of no width: which of them mean something.

ZWNJ and ZWJ (U+200C, U+200D) stay after a letter or mark of the scripts whose shapes they choose, as in Persian and the
scripts of India (after RFC 5892, appendix A, but for whole scripts), and ZWJ stays between two emoji that it makes one.
"""

from __future__ import annotations

import re

_SHAPED = (  # Arabic to Arabic Extended-A; Indic to Tibetan; Myanmar; Khmer, Mongolian; Balinese to Lepcha; the rest
    "\u0600-\u08ff\u0900-\u0dff\u0f00-\u0fff\u1000-\u109f\u1780-\u18af\u1b00-\u1c4f\ua840-\ua87f\ua8e0-\ua8ff"
    "\ua930-\ua9ff\uaa60-\uaa7f\uabc0-\uabff\ufb50-\ufdcf\ufdf0-\ufdff\ufe70-\ufefc\U00010a00-\U00010fff"
    "\U00011000-\U00011fff\U0001e900-\U0001e95f"
)
_PICTURE = "\u00a9\u00ae\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_AFTER_PICTURE = _PICTURE + "\ufe0f\u20e3\U000e007f"  # or what ends one: variation, key cap, end of a flag's tags
# Zero-width space, word joiner, invisible operators, soft hyphen, Mongolian vowel separator, Hangul fillers are not.
_MEANINGLESS = re.compile(
    "[\u00ad\u115f\u1160\u180e\u200b\u2060-\u2064\u3164\uffa0]"
    f"|(?<![{_SHAPED}])\u200c"
    f"|(?<![{_SHAPED}{_AFTER_PICTURE}])\u200d"
    f"|(?<=[{_AFTER_PICTURE}])\u200d(?![{_PICTURE}])"
)


def remove(text: str) -> str:
    """All of them that mean nothing."""
    return text if text.isascii() else _MEANINGLESS.sub("", text)
