"""A picture of scores by length of the prompt and place of the needle, as SVG or HTML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from ellm.units import count_of, format_count

if TYPE_CHECKING:
    from ellm.quality.results import TaskAnswer

PLACES = 10
"""Rows of a panel: tenths of the document."""
# Source: Matplotlib's viridis at 0, 1/4, 1/2, 3/4 and 1: lightness alone tells the order, so it
# reads the same without colour vision and in print.
_COLOURS = ((0x44, 0x01, 0x54), (0x3B, 0x52, 0x8B), (0x21, 0x91, 0x8C), (0x5E, 0xC9, 0x62),
            (0xFD, 0xE7, 0x25))  # fmt: skip
_EMPTY = "#eeeeee"
_INK = "#222222"
_LIGHT_FROM = 0.6  # from this score on, black text reads better than white
_CELL_WIDTH, _CELL_HEIGHT = 64, 26
_LEFT, _TOP, _BETWEEN, _RIGHT, _BOTTOM = 96, 92, 36, 110, 64
_LEAST_WIDTH = 520
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Scores of one arm.

    Attributes:
        name: The arm.
        scores: The scores in each (tenth of the document, length in tokens); absent without any.
    """

    name: str
    scores: Mapping[tuple[int, int], Sequence[float]]

    @property
    def count(self) -> int:
        """Number of answers."""
        return sum(map(len, self.scores.values()))

    @property
    def mean(self) -> float:
        """Mean score of all answers."""
        return sum(map(sum, self.scores.values())) / max(1, self.count)


def heat_maps(answers: Sequence[TaskAnswer], arms: Sequence[str]) -> list[HeatMap]:
    """Return the map of each arm over the answers whose needle has a place."""
    maps = []
    for arm in arms:
        scores: dict[tuple[int, int], list[float]] = {}
        for answer in answers:
            if answer.arm == arm and answer.position is not None:
                place = min(int(answer.position * PLACES), PLACES - 1)
                scores.setdefault((place, answer.length_tokens), []).append(answer.score)
        maps.append(HeatMap(arm, scores))
    return maps


def draw_svg(maps: Sequence[HeatMap], lengths_tokens: Sequence[int], title: str) -> str:
    """Return the panels, one per map, side by side with one legend."""
    panel = max(len(lengths_tokens) * _CELL_WIDTH, 150)
    # Titles stand over a single panel, too.
    drawn = _LEFT + len(maps) * (panel + _BETWEEN) + _RIGHT
    width = max(drawn, _LEAST_WIDTH, 10 * len(title) + 32)
    height = _TOP + PLACES * _CELL_HEIGHT + _BOTTOM
    svg = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {height}",
            "width": str(width),
            "height": str(height),
            "role": "img",
            "font-family": _FONT,
            "font-size": "12",
        },
    )
    ET.SubElement(svg, "title").text = _clean(title)
    _rect(svg, 0, 0, width, height, "white")
    _text(svg, 16, 28, title, size=16, bold=True)
    about = "mean score in points of 100; answers of the tasks whose needle has one place"
    _text(svg, 16, 48, about)
    _rows_axis(svg)
    for index, heat_map in enumerate(maps):
        _panel(svg, _LEFT + index * (panel + _BETWEEN), heat_map, lengths_tokens)
    middle = (_LEFT + drawn - _RIGHT - _BETWEEN) / 2
    _text(svg, middle, height - 14, "length of the prompt in tokens", anchor="middle")
    _legend(svg, drawn - _RIGHT + 10)
    return ET.tostring(svg, encoding="unicode") + "\n"


def as_html(svg: str, title: str) -> str:
    """Return a page that shows the picture."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}'
        f"</title></head>\n<body>\n{svg}</body>\n</html>\n"
    )


def colour(score: float) -> str:
    """Return the colour of a score in 0..1."""
    place = min(max(score, 0.0), 1.0) * (len(_COLOURS) - 1)
    index = min(int(place), len(_COLOURS) - 2)
    below, above = list(pairwise(_COLOURS))[index]
    share = place - index
    mixed = (round(a + (b - a) * share) for a, b in zip(below, above, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _rows_axis(svg: ET.Element) -> None:
    for place in range(PLACES):
        label = f"{place * 100 // PLACES}-{(place + 1) * 100 // PLACES} %"
        y = _TOP + (place + 0.5) * _CELL_HEIGHT + 4
        _text(svg, _LEFT - 8, y, label, anchor="end")
    x, y = 22, _TOP + PLACES * _CELL_HEIGHT / 2
    title = _text(svg, x, y, "place of the needle in the document", anchor="middle")
    title.set("transform", f"rotate(-90 {x} {y:g})")


def _panel(svg: ET.Element, left: float, heat_map: HeatMap, lengths: Sequence[int]) -> None:
    about = f"mean {heat_map.mean * 100:.1f}, {count_of(heat_map.count, 'answer')}"
    _text(svg, left, _TOP - 22, heat_map.name, size=13, bold=True)
    _text(svg, left, _TOP - 7, about, size=11)
    for column, length in enumerate(lengths):
        x = left + column * _CELL_WIDTH
        for place in range(PLACES):
            scores = heat_map.scores.get((place, length), ())
            _cell(svg, x, _TOP + place * _CELL_HEIGHT, scores, (place, length))
        y = _TOP + PLACES * _CELL_HEIGHT + 16
        _text(svg, x + _CELL_WIDTH / 2, y, format_count(length), anchor="middle")


def _cell(
    svg: ET.Element, x: float, y: float, scores: Sequence[float], place_and_length: tuple[int, int]
) -> None:
    place, length = place_and_length
    mean = sum(scores) / len(scores) if scores else None
    group = ET.SubElement(svg, "g")
    where = f"{format_count(length)} tokens, {place * 10}-{place * 10 + 10} %"
    shown = "no item" if mean is None else f"{mean * 100:.1f} of {count_of(len(scores), 'item')}"
    ET.SubElement(group, "title").text = f"{where}: {shown}"
    fill = _EMPTY if mean is None else colour(mean)
    _rect(group, x, y, _CELL_WIDTH - 1, _CELL_HEIGHT - 1, fill)
    if mean is not None:
        ink = _INK if mean >= _LIGHT_FROM else "white"
        middle = x + (_CELL_WIDTH - 1) / 2
        _text(group, middle, y + 17, f"{mean * 100:.0f}", anchor="middle", fill=ink)


def _legend(svg: ET.Element, left: float) -> None:
    steps, width = 50, 16
    height = PLACES * _CELL_HEIGHT - 40
    _text(svg, left, _TOP - 7, "score", bold=True)
    for step in range(steps):
        y = _TOP + height * step / steps
        # Each a little taller than its part, so that no background shows between two.
        _rect(svg, left, y, width, height / steps + 0.5, colour(1 - step / (steps - 1)))
    for points in (100, 75, 50, 25, 0):
        y = _TOP + height * (1 - points / 100) + 4
        _text(svg, left + width + 6, y, str(points))
    y = _TOP + height + 20
    _rect(svg, left, y, width, width, _EMPTY)
    _text(svg, left + width + 6, y + 12, "no item")


def _rect(
    parent: ET.Element, x: float, y: float, width: float, height: float, fill: str
) -> ET.Element:
    place = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return ET.SubElement(parent, "rect", {**place, "fill": fill})


def _text(
    parent: ET.Element,
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 12,
    bold: bool = False,
    fill: str = _INK,
) -> ET.Element:
    style = {"font-size": str(size), "fill": fill, "text-anchor": anchor}
    if bold:
        style["font-weight"] = "600"
    element = ET.SubElement(parent, "text", {"x": f"{x:g}", "y": f"{y:g}", **style})
    element.text = _clean(text)
    return element


def _clean(text: str) -> str:
    """Return a text without what a file's name may hold and XML cannot: control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)
