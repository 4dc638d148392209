"""Pieces of SVG, and the frame that all plots share. No `style` attribute: the page's policy forbids it; classes do the work."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from advisor.model.message import Message
from advisor.model.words import clean, shorten
from advisor.report.figures.scale import Scale

WIDTH = 560
HEIGHT = 292
_CHAR = 6.1
"""Width of a character at the size of the labels, in pixels, rather too wide than too narrow."""


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: a class of the style sheet that draws its mark, and what it means."""

    mark: str
    label: str
    full: str | None = None
    """The whole label where `label` is cut."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with what has to be said beside it."""

    svg: Markup
    caption: Message | str
    legend: tuple[Key, ...] = ()
    notes: tuple[str, ...] = ()
    """What the picture leaves out, one sentence each."""


def escape(text: str) -> str:
    """Text for SVG content or a quoted attribute."""
    return html.escape(clean(text), quote=True)


def fmt(value: float) -> str:
    """A coordinate in as few characters as it takes: one decimal."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def text_width(text: str) -> float:
    """About how wide a label is, in pixels."""
    return len(text) * _CHAR


@dataclass
class Frame:
    """A plot area with axes around it, filled piece by piece from back to front."""

    x: Scale | None = None
    y: Scale | None = None
    height: float = HEIGHT
    parts: list[str] = field(default_factory=list)

    def add(self, tag: str, cls: str, body: str | None = None, **attributes: float | str) -> None:
        """An element; underscores in names of attributes stand for hyphens, numbers are rounded."""
        given = "".join(
            f' {k.replace("_", "-")}="{fmt(v) if isinstance(v, int | float) else html.escape(v, quote=True)}"'
            for k, v in attributes.items()
        )
        cls = f' class="{cls}"' if cls else ""
        self.parts.append(f"<{tag}{cls}{given}/>" if body is None else f"<{tag}{cls}{given}>{body}</{tag}>")

    def text(
        self, x: float, y: float, text: str, cls: str = "", anchor: str = "start", title: str | None = None
    ) -> None:
        """A label; `title` is shown when one points at it."""
        tip = f"<title>{escape(title)}</title>" if title is not None and title != text else ""
        place = "" if anchor == "start" else {"middle": "m", "end": "e"}[anchor]
        # Nobody sees a tenth of a pixel in the place of a label.
        self.add("text", " ".join(c for c in (cls, place) if c), tip + escape(text), x=round(x), y=round(y))

    def line(self, x1: float, y1: float, x2: float, y2: float, cls: str) -> None:
        """A straight line."""
        self.add("path", cls, d=f"M{fmt(x1)} {fmt(y1)}L{fmt(x2)} {fmt(y2)}")

    def y_axis(self, label: str, left: float, right: float, ticks: Sequence[tuple[float, str]]) -> None:
        """Horizontal grid lines with their labels, and the axis' name above them."""
        assert self.y is not None
        grid = "".join(f"M{fmt(left)} {fmt(self.y(v))}H{fmt(right)}" for v, _ in ticks)
        self.add("path", "gridline", d=grid)
        for value, tick in ticks:
            self.text(left - 6, self.y(value) + 4, tick, anchor="end")
        self.text(2, 12, shorten(clean(label) + (" (log)" if self.y.log else ""), 70), "name", title=label)

    def x_axis(
        self, label: str, bottom: float, most: int = 6, ticks: Sequence[tuple[float, str]] | None = None
    ) -> None:
        """The line below the plot with ticks (round values, unless given), their labels, and the axis' name."""
        assert self.x is not None
        low, high = sorted((self.x.start, self.x.end))
        ticks = self.x.ticks(most) if ticks is None else ticks
        marks = "".join(f"M{fmt(self.x(v))} {fmt(bottom)}v4" for v, _ in ticks)
        self.add("path", "axis", d=f"M{fmt(low)} {fmt(bottom)}H{fmt(high)}{marks}")
        edge = -1e9
        for value, tick in ticks:
            at, half = self.x(value), text_width(tick) / 2
            if at - half < edge + 4:
                continue
            edge = at + half
            self.text(min(at, WIDTH - half - 1), bottom + 17, tick, anchor="middle")
        turned = " (log of 1 - value)" if self.x.reverse else " (log)" if self.x.log else ""
        self.x_name(label + turned, (low + high) / 2)

    def x_name(self, label: str, middle: float) -> None:
        """The name of the axis below its labels."""
        self.text(middle, self.height - 5, shorten(clean(label), 60), "name", anchor="middle", title=label)

    def vertical_labels(self, marks: Sequence[tuple[float, str]], top: float, bottom: float, cls: str = "mark") -> None:
        """Dashed vertical lines at pixels with labels that do not run into each other."""
        rows: list[float] = []
        for at, label in sorted(marks):
            self.line(at, top, at, bottom, cls)
            shown = shorten(clean(label), 34)
            width = text_width(shown)
            left = at + 4 if at + 4 + width < WIDTH else at - 4 - width
            row = next((i for i, edge in enumerate(rows) if left > edge + 6), len(rows))
            rows[row : row + 1] = [left + width]
            start = left < at
            self.text(
                at - 4 if start else at + 4, top + 12 + 13 * row, shown, "halo", "end" if start else "start", label
            )

    def group(self, start: int, **attributes: str) -> None:
        """Puts the parts from `start` on into a group."""
        parts, self.parts[start:] = self.parts[start:], []
        self.add("g", "", "".join(parts), **attributes)

    def render(self, title: str) -> Markup:
        """The picture; what it shows is said by the caption of its figure."""
        scales = "".join(f' data-{n}="{_describe(s)}"' for n, s in (("x", self.x), ("y", self.y)) if s is not None)
        head = f'<svg viewBox="0 0 {WIDTH} {fmt(self.height)}" role="img"{scales}><title>{escape(title)}</title>'
        # Markup is right here: every text above went through `escape`, every attribute through `html.escape`.
        return Markup(head + "".join(self.parts) + "</svg>")  # noqa: S704


def _describe(scale: Scale) -> str:
    kind = "rev" if scale.reverse else "log" if scale.log else "lin"
    return f"{kind} {_end(scale.low, scale)} {_end(scale.high, scale)} {fmt(scale.start)} {fmt(scale.end)}"


def _end(value: float, scale: Scale) -> str:
    """An end of a scale to a thousandth of a pixel: in as many digits as its distance from the other end asks for."""
    span = min(abs(value), 1 - value) if scale.reverse else abs(value) if scale.log else scale.high - scale.low
    digits = 7 if span <= 0 else 7 + max(0, math.ceil(math.log10(max(abs(value), span) / span)))
    return f"{value:.{min(digits, 17)}g}"


def left_margin(ticks: Iterable[tuple[float, str]]) -> float:
    """Room for the labels of a vertical axis."""
    return max((text_width(label) for _, label in ticks), default=0.0) + 14


def dots(points: Iterable[tuple[float, float]]) -> str:
    """Path data of marks, to whole pixels: empty strokes, which the style sheet ends in round caps or marks with a cross."""
    return "".join(f"M{x:.0f} {y:.0f}z" for x, y in points)


def bar(x: float, y: float, width: float, height: float) -> str:
    """Path data of a rectangle."""
    return f"M{fmt(x)} {fmt(y)}h{fmt(width)}v{fmt(height)}h{fmt(-width)}z"


def indices(trials: Sequence[int]) -> str:
    """Indices of trials as an attribute holds them: `3 7-12`, a range for those that follow one another."""
    runs: list[list[int]] = []
    for i in trials:
        if runs and i == runs[-1][1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
