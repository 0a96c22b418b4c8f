"""Loss against steps as an SVG drawing; colours and type come from the page, so that it follows light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Callable, List, Sequence, Tuple

Point = Tuple[float, float]
_TOP, _BOTTOM, _LEFT, _LETTER = 34, 44, 40, 7.2  # pixels; the last is the width of a letter of a label


@dataclass(frozen=True)
class Curve:
    train: List[Point]  # (step, loss)
    held_out: List[Point]
    guess: float  # the loss of one who knows nothing
    guess_label: str
    bar: float
    stopped_at: int


def draw(curve: Curve, width: int, height: int) -> str:
    """Labels stand beside what they name, so there is no legend; a narrow page gets its own drawing of less width."""
    ends = _end_labels(curve)
    right = int(max(len(text) for _, text, _ in ends) * _LETTER) + 14
    steps = curve.train[-1][0]
    low, high = _range(curve)
    x = _scale(0, steps, _LEFT, width - right)
    y = _scale(low, high, height - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Loss against steps" class="chart">',
        *_axes(x, y, steps, low, high, width - right, height),
        _level(y(curve.guess), x(0), x(steps), "guess", curve.guess_label),
        _level(y(curve.bar), x(0), x(steps), "bar", f"to end below {curve.bar:g}"),
        *_stop(curve.stopped_at, x, y(curve.guess), height),
        _path([(x(s), y(v)) for s, v in curve.train], "each"),
        _path([(x(s), y(v)) for s, v in _smoothed(curve.train)], "train"),
        _path([(x(s), y(v)) for s, v in curve.held_out], "held-out"),
        *(
            f'<circle class="held-out" cx="{x(s):.1f}" cy="{y(v):.1f}" r="3.2">'
            f"<title>held-out text, step {s:.0f}: {v:.3f}</title></circle>"
            for s, v in curve.held_out
        ),
        *_place_ends([(y(value), text, kind) for value, text, kind in ends], x(steps) + 10),
        "</svg>",
    ]
    return "\n".join(parts)


def _range(curve: Curve) -> Tuple[float, float]:
    """Half units that hold every line."""
    values = [v for _, v in curve.train + curve.held_out] + [curve.guess, curve.bar]
    return int(min(values) * 2 - 0.2) / 2, int(max(values) * 2 + 0.999) / 2


def _smoothed(points: Sequence[Point], window: int = 8) -> List[Point]:
    """Mean over up to `window` steps on each side: none beyond those behind, since the curve begins steeply."""
    values = [v for _, v in points]
    means = []
    for index, (step, _) in enumerate(points):
        behind = min(window, index)
        near = values[index - behind : index + behind + 1]
        means.append((step, sum(near) / len(near)))
    return means


def _scale(a: float, b: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - a) / (b - a) * (end - start)


def _axes(
    x: Callable[[float], float],
    y: Callable[[float], float],
    steps: float,
    low: float,
    high: float,
    right: float,
    height: int,
) -> List[str]:
    parts = []
    value = low
    while value <= high + 1e-9:
        if value == int(value):
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
            parts.append(
                f'<text class="tick" x="{_LEFT - 10}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
            )
        value += 0.5
    unit = next(u for u in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if steps / u <= 6)
    for step in range(0, int(steps) + 1, unit):
        parts.append(f'<text class="tick" x="{x(step):.1f}" y="{height - 24}" text-anchor="middle">{step}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="axis" x="{middle:.0f}" y="{height - 4}" text-anchor="middle">training step</text>')
    parts.append(f'<text class="axis" x="{_LEFT - 24}" y="16">loss, nats a token</text>')
    return parts


def _level(y: float, left: float, right: float, kind: str, label: str) -> str:
    text = f'<text class="label {kind}" x="{right - 4:.1f}" y="{y - 7:.1f}" text-anchor="end">{escape(label)}</text>'
    if kind == "bar":  # under its left end, where the curve is still high above it
        text = f'<text class="label {kind}" x="{left + 6:.1f}" y="{y + 17:.1f}">{escape(label)}</text>'
    return f'<line class="{kind}" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>{text}'


def _stop(step: int, x: Callable[[float], float], top: float, height: int) -> List[str]:
    at, middle = x(step + 0.5), (_TOP + height - _BOTTOM) / 2
    return [
        f'<line class="stop" x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{height - _BOTTOM}"/>',
        f'<text class="label stop" x="{at + 8:.1f}" y="{middle - 24:.0f}">stopped after step {step},</text>',
        f'<text class="label stop" x="{at + 8:.1f}" y="{middle - 8:.0f}">launched again</text>',
    ]


def _path(points: Sequence[Point], kind: str) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{px:.1f},{py:.1f}" for px, py in points)}"/>'


def _end_labels(curve: Curve) -> List[Tuple[float, str, str]]:
    train, held_out = _smoothed(curve.train)[-1][1], curve.held_out[-1][1]
    last = sum(v for _, v in curve.train[-10:]) / len(curve.train[-10:])
    return [(train, f"training {last:.2f}", "train"), (held_out, f"held out {held_out:.2f}", "held-out")]


def _place_ends(ends: List[Tuple[float, str, str]], x: float) -> List[str]:
    """Labels at the ends of their lines, moved apart where they would cover each other."""
    (y1, *_), (y2, *_) = placed = sorted(ends)
    gap = max(0.0, 18 - (y2 - y1)) / 2
    shifts = (-gap, gap)
    return [
        f'<text class="label {kind}" x="{x:.1f}" y="{y + shift + 4:.1f}">{escape(text)}</text>'
        for (y, text, kind), shift in zip(placed, shifts)
    ]
