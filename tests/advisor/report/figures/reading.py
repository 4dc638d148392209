"""Reads figures back: paths, points and trials of their SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from advisor.report.figures import Figure
from advisor.report.plot_data.scale import Scale


def root(figure: Figure) -> ET.Element:
    return ET.fromstring(str(figure.svg))


def paths(figure: Figure, cls: str) -> list[ET.Element]:
    """The paths with a class, their own or their group's."""
    groups = [g for g in root(figure).iter("g") if cls in (g.get("class") or "").split()]
    own = [e for e in root(figure).iter("path") if cls in (e.get("class") or "").split()]
    return own + [e for g in groups for e in g.iter("path")]


def points(path: ET.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", path.get("d") or "")]


def trials(path: ET.Element) -> Iterator[int]:
    for run in (path.get("data-t") or "").split():
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


def drawn(figure: Figure, cls: str) -> Iterator[int]:
    for element in (e for e in root(figure).iter() if cls in (e.get("class") or "").split()):
        yield from trials(element)


def values(scale: str) -> Scale:
    kind, low, high, start, end = scale.split(" ")
    return Scale(float(low), float(high), float(start), float(end), kind == "log")
