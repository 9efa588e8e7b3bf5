"""Charts as SVG text. Colours are classes of the page's style sheet, so that both themes fit."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

__all__ = ["Chart", "bars", "number"]

# numbers along an axis
Line = Sequence[float] | np.ndarray

WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 46
MARGIN = 0.04


def number(value: float) -> str:
    """A number in a few characters, for people."""
    if not math.isfinite(value):
        return "–"
    if value != 0 and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two ends."""
    span = high - low
    step = 10.0 ** math.floor(math.log10(span / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


@dataclass
class Chart:
    """Axes and what is drawn on them.

    Attributes:
        x: the ends of the horizontal axis.
        y: the ends of the vertical axis.
        title: what a screen reader says.
        labels: of the two axes.
        dates: whether the horizontal axis is in days since 1970-01-01.
        height: of the picture; its width is 440.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    title: str
    labels: tuple[str, str] = ("", "")
    dates: bool = False
    height: int = HEIGHT
    parts: list[str] = field(default_factory=list)

    @classmethod
    def around(cls, x: Line, y: Line, title: str, **more: Any) -> Chart:
        """A chart whose axes hold all these numbers."""
        return cls(_ends(x), _ends(y), title, **more)

    def px(self, x: float) -> float:
        """The horizontal place of a number."""
        low, high = self.x
        return round(LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def py(self, y: float) -> float:
        """The vertical place of a number."""
        low, high = self.y
        return round(self.height - BOTTOM - (y - low) / (high - low) * (self.height - TOP - BOTTOM), 1)

    def dots(self, x: Line, y: Line, kind: str = "dot", size: float = 2.4) -> Chart:
        """A circle at each point."""
        places = zip(x, y, strict=True)
        self.parts += [
            f'<circle class="{kind}" cx="{self.px(a)}" cy="{self.py(b)}" r="{size}"/>' for a, b in places
        ]
        return self

    def line(self, x: Line, y: Line, kind: str = "line") -> Chart:
        """A line through the points."""
        path = " ".join(f"{self.px(a)},{self.py(b)}" for a, b in zip(x, y, strict=True))
        self.parts.append(f'<polyline class="{kind}" points="{path}"/>')
        return self

    def band(self, x: Line, low: Line, high: Line) -> Chart:
        """The area between two lines."""
        there = [f"{self.px(a)},{self.py(b)}" for a, b in zip(x, low, strict=True)]
        back = [f"{self.px(a)},{self.py(b)}" for a, b in zip(x, high, strict=True)]
        self.parts.append(f'<polygon class="band" points="{" ".join(there + back[::-1])}"/>')
        return self

    def spans(self, x: Line, low: Line, high: Line) -> Chart:
        """A vertical line from `low` to `high` at each x."""
        for a, b, c in zip(x, low, high, strict=True):
            place = self.px(a)
            self.parts.append(
                f'<line class="span" x1="{place}" x2="{place}" y1="{self.py(b)}" y2="{self.py(c)}"/>'
            )
        return self

    def columns(self, x: Line, height: Line, width: float) -> Chart:
        """Bars from 0."""
        size = max(0.8, self.px(self.x[0] + width) - self.px(self.x[0]) - 0.6)
        for a, b in zip(x, height, strict=True):
            top, foot = self.py(b), self.py(max(0.0, self.y[0]))
            self.parts.append(
                f'<rect class="bar" x="{self.px(a) - size / 2:.1f}" y="{top}" width="{size:.1f}" '
                f'height="{max(0.0, foot - top):.1f}"/>'
            )
        return self

    def text(self, x: float, y: float, words: str, kind: str = "note") -> Chart:
        """Words centred at a point."""
        self.parts.append(
            f'<text class="{kind}" x="{self.px(x)}" y="{self.py(y)}">{escape(words)}</text>'
        )
        return self

    def svg(self, names: Sequence[str] | None = None, vertical: bool = True) -> str:
        """The picture.

        Args:
            names: of the places 0, 1, … of the horizontal axis, in place of numbers.
            vertical: whether the vertical axis has numbers.
        """
        frame = []
        for value in ticks(*self.y) if vertical else []:
            y = self.py(value)
            frame.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            frame.append(f'<text class="left" x="{LEFT - 6}" y="{y + 4}">{number(value)}</text>')
        foot = self.height - BOTTOM
        for value, words in self._marks(names):
            frame.append(
                f'<text class="under" x="{self.px(value)}" y="{foot + 17}">{escape(words)}</text>'
            )
        frame.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{foot}" y2="{foot}"/>')
        middle, height = (LEFT + WIDTH - RIGHT) / 2, (TOP + foot) / 2
        frame.append(
            f'<text class="label" x="{middle}" y="{self.height - 8}">{escape(self.labels[0])}</text>'
        )
        turned = f'transform="translate(13 {height}) rotate(-90)"'
        frame.append(f'<text class="label" {turned}>{escape(self.labels[1])}</text>')
        return _picture(self.height, self.title, "".join(frame + self.parts))

    def _marks(self, names: Sequence[str] | None) -> list[tuple[float, str]]:
        if names is not None:
            return [(float(place), _short(name)) for place, name in enumerate(names)]
        marks = ticks(*self.x, most=4 if self.dates else 5)
        if not self.dates:
            return [(value, number(value)) for value in marks]
        start = datetime.date(1970, 1, 1)
        return [(value, str(start + datetime.timedelta(days=round(value)))) for value in marks]


def bars(values: dict[str, float], title: str) -> str:
    """Named horizontal bars for numbers from 0 to 1."""
    row, left = 24, 150
    parts = []
    for place, (name, value) in enumerate(values.items()):
        y = place * row + 4
        size = value * (WIDTH - left - 56)
        parts.append(f'<text class="left" x="{left - 8}" y="{y + 13}">{escape(_short(name, 20))}</text>')
        parts.append(f'<rect class="bar" x="{left}" y="{y}" width="{size:.1f}" height="{row - 8}"/>')
        parts.append(f'<text class="right" x="{left + size + 6:.1f}" y="{y + 13}">{value:.2f}</text>')
    height = len(values) * row + 6
    return _picture(height, title, "".join(parts))


def _picture(height: int, title: str, inside: str) -> str:
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{inside}</svg>'


def _short(name: str, most: int = 12) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _ends(values: Line) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    space = MARGIN * (high - low) or max(abs(low), 1.0) * 0.5
    return low - space, high + space
