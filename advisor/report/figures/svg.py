"""SVG elements, and the plot area that all figures use. Styles come from CSS classes, because the page's
Content-Security-Policy forbids `style` attributes."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from advisor.model.message import Message
from advisor.model.words import clean, shorten
from advisor.report.plot_data.scale import AxisLimits, Scale

FIGURE_WIDTH = 560
FIGURE_HEIGHT = 292.0
TOP_MARGIN, BOTTOM_MARGIN = 22.0, 40.0
"""Height in pixels of the margins above and below the plot area."""
PLOT_RIGHT_EDGE = FIGURE_WIDTH - 12.0
_CHARACTER_WIDTH_PX = 6.1
"""Estimated width in pixels of one character of a label. The estimate is an upper bound, so that labels fit."""

AxisTicks = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Key:
    css_class: str
    label: str
    full_label: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    svg: Markup
    caption: Message | str
    legend: tuple[Key, ...] = ()
    notes: tuple[Message | str, ...] = ()


def escape(text: str) -> str:
    """Return the text escaped for SVG content or a quoted attribute."""
    return html.escape(clean(text), quote=True)


def px_text(value: float) -> str:
    """Return the coordinate as text with at most one decimal."""
    rounded_text = f"{value:.1f}"
    return rounded_text[:-2] if rounded_text.endswith(".0") else rounded_text


def _axis_scale_suffix(scale: Scale) -> str:
    return " (log of 1 - value)" if scale.reverse else " (log)" if scale.log else ""


def label_width_px(text: str) -> float:
    return len(text) * _CHARACTER_WIDTH_PX


@dataclass
class Frame:
    """A plot area with axes. SVG parts that are added later cover parts that were added earlier."""

    height_px: float = FIGURE_HEIGHT
    top_px: float = TOP_MARGIN
    right_px: float = PLOT_RIGHT_EDGE
    left_px: float = 0.0
    svg_elements: list[str] = field(default_factory=list)
    x: Scale = field(init=False)
    y: Scale = field(init=False)
    _y_ticks: AxisTicks = ()

    @property
    def bottom_px(self) -> float:
        return self.height_px - BOTTOM_MARGIN

    def fit_y_axis(self, limits: AxisLimits, ticks: AxisTicks | None = None, min_left: float = 0.0) -> None:
        """Set the vertical scale, and move the left edge so that the tick labels fit. Default ticks are at round values."""
        self.y = limits.scale(self.bottom_px, self.top_px)
        self._y_ticks = self.y.ticks(5) if ticks is None else ticks
        label_space = max((label_width_px(label) for _, label in self._y_ticks), default=0.0) + 14
        self.left_px = max(label_space, min_left)

    def fit_x_axis(self, limits: AxisLimits) -> None:
        self.x = limits.scale(self.left_px, self.right_px)

    def add_element(self, tag: str, cls: str, body: str | None = None, **attributes: float | str) -> None:
        """Add an SVG element; underscores in attribute names become hyphens, and numbers are rounded."""
        attrs = "".join(
            f' {k.replace("_", "-")}="{px_text(v) if isinstance(v, int | float) else html.escape(v, quote=True)}"'
            for k, v in attributes.items()
        )
        cls = f' class="{cls}"' if cls else ""
        self.svg_elements.append(f"<{tag}{cls}{attrs}/>" if body is None else f"<{tag}{cls}{attrs}>{body}</{tag}>")

    def add_label(self, x: float, y: float, text: str, cls: str = "", anchor: str = "start", title: str | None = None) -> None:
        """Add a text label at coordinates that are rounded to whole pixels; `title` is the label's tooltip."""
        tip = f"<title>{escape(title)}</title>" if title is not None and title != text else ""
        anchor_suffix = "" if anchor == "start" else {"middle": "m", "end": "e"}[anchor]
        self.add_element("text", " ".join(c for c in (cls, anchor_suffix) if c), tip + escape(text), x=round(x), y=round(y))

    def add_line(self, x1: float, y1: float, x2: float, y2: float, cls: str) -> None:
        self.add_element("path", cls, d=f"M{px_text(x1)} {px_text(y1)}L{px_text(x2)} {px_text(y2)}")

    def add_y_axis(self, label: str) -> None:
        grid_path = "".join(f"M{px_text(self.left_px)} {px_text(self.y(v))}H{px_text(self.right_px)}" for v, _ in self._y_ticks)
        self.add_element("path", "gridline", d=grid_path)
        for value, tick in self._y_ticks:
            self.add_label(self.left_px - 6, self.y(value) + 4, tick, anchor="end")
        self.add_label(2, 12, shorten(clean(label) + _axis_scale_suffix(self.y), 70), "name", title=label)

    def add_x_axis(self, label: str, ticks: AxisTicks | None = None, at: float | None = None) -> None:
        axis_y = self.bottom_px if at is None else at
        low, high = sorted((self.x.start_px, self.x.end_px))
        ticks = self.x.ticks(6) if ticks is None else ticks
        tick_path = "".join(f"M{px_text(self.x(v))} {px_text(axis_y)}v4" for v, _ in ticks)
        self.add_element("path", "axis", d=f"M{px_text(low)} {px_text(axis_y)}H{px_text(high)}{tick_path}")
        last_label_end = -1e9
        for value, tick in ticks:
            middle, half = self.x(value), label_width_px(tick) / 2
            if middle - half < last_label_end + 4:
                continue
            last_label_end = middle + half
            self.add_label(min(middle, FIGURE_WIDTH - half - 1), axis_y + 17, tick, anchor="middle")
        self.add_x_axis_name(label + _axis_scale_suffix(self.x), (low + high) / 2)

    def add_column_axis(self, labels: Sequence[str], name: str) -> None:
        """Add a horizontal axis with a column for each label. Labels that would overlap are skipped or shortened."""
        self.add_line(self.left_px, self.bottom_px, self.right_px, self.bottom_px, "axis")
        width = self.column_width(len(labels))
        label_interval = max(1, math.ceil(30 / width))
        for i, label in enumerate(labels):
            if i % label_interval == 0:
                short_label = shorten(label, max(int(label_interval * width / _CHARACTER_WIDTH_PX) - 1, 4))
                self.add_label(self.left_px + (i + 0.5) * width, self.bottom_px + 17, short_label, anchor="middle", title=label)
        self.add_x_axis_name(name, (self.left_px + self.right_px) / 2)

    def column_width(self, columns: int) -> float:
        return (self.right_px - self.left_px) / max(columns, 1)

    def add_x_axis_name(self, label: str, middle: float) -> None:
        self.add_label(middle, self.height_px - 5, shorten(label, 60), "name", anchor="middle", title=label)

    def add_vertical_labels(self, marks: Sequence[tuple[float, str]]) -> None:
        """Add dashed vertical lines at the given horizontal pixels, with labels that do not overlap."""
        label_rows: list[float] = []
        for at, label in sorted(marks):
            self.add_line(at, self.top_px, at, self.bottom_px, "mark")
            short_label = shorten(label, 34)
            label_px = label_width_px(short_label)
            label_x = at + 4 if at + 4 + label_px < FIGURE_WIDTH else at - 4 - label_px
            row = next((i for i, edge in enumerate(label_rows) if label_x > edge + 6), len(label_rows))
            label_rows[row : row + 1] = [label_x + label_px]
            x, anchor = (at - 4, "end") if label_x < at else (at + 4, "start")
            self.add_label(x, self.top_px + 12 + 13 * row, short_label, "halo", anchor, label)

    def group_elements(self, start: int, **attributes: str) -> None:
        parts, self.svg_elements[start:] = self.svg_elements[start:], []
        self.add_element("g", "", "".join(parts), **attributes)

    def render_svg(self, title: str) -> Markup:
        axes = "".join(f' data-{n}="{_scale_attribute_text(getattr(self, n))}"' for n in "xy" if hasattr(self, n))
        head = f'<svg viewBox="0 0 {FIGURE_WIDTH} {px_text(self.height_px)}" role="img"{axes}><title>{escape(title)}</title>'
        # The markup is safe, because `escape` or `html.escape` was applied to all texts and attributes in `svg_elements`.
        return Markup(head + "".join(self.svg_elements) + "</svg>")  # noqa: S704


def _scale_attribute_text(scale: Scale) -> str:
    scale_name = "rev" if scale.reverse else "log" if scale.log else "lin"
    low, high = _scale_end_attribute(scale.low, scale), _scale_end_attribute(scale.high, scale)
    return f"{scale_name} {low} {high} {px_text(scale.start_px)} {px_text(scale.end_px)}"


def _scale_end_attribute(value: float, scale: Scale) -> str:
    """Return one end of the scale with so many digits that pixel positions are off by less than 0.001."""
    resolved_span = min(abs(value), 1 - value) if scale.reverse else abs(value) if scale.log else scale.high - scale.low
    digits = 7 if resolved_span <= 0 else 7 + max(0, math.ceil(math.log10(max(abs(value), resolved_span) / resolved_span)))
    return f"{value:.{min(digits, 17)}g}"


def dots_path_data(points: Iterable[tuple[float, float]]) -> str:
    """Return path data with an empty stroke at each point. The style sheet turns the strokes into dots or crosses."""
    return "".join(f"M{x:.0f} {y:.0f}z" for x, y in points)


def bar_path_data(x: float, y: float, width: float, height: float) -> str:
    return f"M{px_text(x)} {px_text(y)}h{px_text(width)}v{px_text(height)}h{px_text(-width)}z"


def trial_indices_attribute(trials: Sequence[int]) -> str:
    """Return trial indices as the text of an attribute: `3 7-12`."""
    index_ranges: list[list[int]] = []
    for i in trials:
        if index_ranges and i == index_ranges[-1][1] + 1:
            index_ranges[-1][1] = i
        else:
            index_ranges.append([i, i])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in index_ranges)
