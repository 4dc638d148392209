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
    """Return the paths that have this class themselves or through their group."""
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
    return Scale(float(low), float(high), float(start), float(end), kind == "log", kind == "rev")


def scales(figure: Figure) -> tuple[Scale, Scale]:
    """The horizontal and the vertical scale; a missing one is the identity."""
    svg = root(figure)
    return values(svg.get("data-x", "lin 0 1 0 1")), values(svg.get("data-y", "lin 0 1 0 1"))


def vertices(path: str) -> list[tuple[float, float]]:
    """The absolute points of a polyline in relative coordinates."""
    x = y = 0.0
    found = []
    for command, rest in re.findall(r"([MlhvL])([^MlhvL]*)", path):
        n = [float(v) for v in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", rest)]
        dx, dy = {"h": (n[0], 0.0), "v": (0.0, n[0])}.get(command, (n[0], n[-1]))
        x, y = (dx, dy) if command == "M" else (x + dx, y + dy)
        found.append((x, y))
    return found
