"""Bars and columns as SVG; colours and type come from the page, so that they follow light and dark.

Each drawing stands beside a table with the same figures, so it is one image to a screen reader, with a title.
"""

from __future__ import annotations

import unicodedata
from html import escape
from typing import List, Sequence, Tuple

_WIDTH, _ROW, _LABEL, _LETTER = 460, 24, 160, 7.5  # pixels; the last is the width of a letter
_HEIGHT, _FOOT, _SIDE = 190, 26, 14


def bars(title: str, rows: Sequence[Tuple[str, float, str]]) -> str:
    """A horizontal bar a row: (label, value from 0, the value as text)."""
    greatest = max((value for _, value, _ in rows), default=0) or 1
    room = _WIDTH - _LABEL - int(max((len(text) for _, _, text in rows), default=0) * _LETTER) - 12
    parts = [_open(title, _ROW * len(rows))]
    for number, (label, value, text) in enumerate(rows):
        y, length = number * _ROW, max(room * value / greatest, 1.0)
        parts += [
            f'<text x="{_LABEL - 8}" y="{y + 16}" text-anchor="end">{escaped(_cut(label))}</text>',
            f'<rect x="{_LABEL}" y="{y + 4}" width="{length:.1f}" height="{_ROW - 8}" rx="2"/>',
            f'<text class="value" x="{_LABEL + length + 6:.1f}" y="{y + 16}">{escaped(text)}</text>',
        ]
    return "\n".join([*parts, "</svg>"])


def columns(title: str, rows: Sequence[Tuple[str, float, str]]) -> str:
    """A vertical bar a row; as many labels as have room. The value as text is shown by a pointer."""
    greatest = max((value for _, value, _ in rows), default=0) or 1
    step = (_WIDTH - 2 * _SIDE) / max(len(rows), 6)
    parts = [_open(title, _HEIGHT + _FOOT)]
    parts.append(f'<line class="grid" x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>')
    every = _labels_every([label for label, _, _ in rows], step)
    for number, (label, value, text) in enumerate(rows):
        x, height = _SIDE + number * step, (_HEIGHT - 12) * value / greatest
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{_HEIGHT - height:.1f}" width="{step - 2:.1f}" height="{height:.1f}">'
            f"<title>{escaped(label)}: {escaped(text)}</title></rect>"
        )
        if number % every == 0:
            middle = x + step / 2
            parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT + 18}" text-anchor="middle">{escaped(label)}</text>')
    return "\n".join([*parts, "</svg>"])


def _open(title: str, height: int) -> str:
    said = escaped(title)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" font-size="13" role="img" aria-label="{said}"><title>{said}</title>'


def _labels_every(labels: List[str], step: float) -> int:
    widest = max((len(label) for label in labels), default=1) * _LETTER + 8
    return max(1, -int(-widest // step))


def _cut(label: str) -> str:
    """The end of a path or an address tells more than its beginning. Chinese letters take the room of two."""
    room = int((_LABEL - 8) / _LETTER)
    widths = [2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in label[-room:]]
    if len(label) <= room and sum(widths) <= room:
        return label
    while sum(widths) >= room:
        widths.pop(0)
    return "\u2026" + label[len(label) - len(widths) :]


def escaped(text: str) -> str:
    """For HTML, which allows no control characters."""
    return escape("".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text))
