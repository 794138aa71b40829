"""The picture is well-formed, and shows each score where it belongs."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from ellm.cli.quality_picture import PLACES, as_html, colour, draw_svg, heat_maps
from ellm.quality.results import TaskAnswer

SVG = "{http://www.w3.org/2000/svg}"
LENGTHS = (4096, 8192)


def answer(arm: str, position: float | None, length: int, score: float) -> TaskAnswer:
    return TaskAnswer(
        task="single-needle",
        length_tokens=length,
        index=0,
        arm=arm,
        score=score,
        position=position,
        prompt_tokens=length,
        expected=("x",),
        text="",
        blocks_read=0,
        blocks_total=0,
        skipped_mass=0.0,
    )


ANSWERS = [
    answer("reference", 0.0, 4096, 1.0),
    answer("reference", 1.0, 8192, 1.0),
    answer("sparse", 0.0, 4096, 1.0),
    answer("sparse", 0.05, 4096, 0.5),
    answer("sparse", 1.0, 8192, 0.0),
    answer("sparse", None, 8192, 1.0),
]


def test_scores_are_sorted_by_place_and_length() -> None:
    reference, sparse = heat_maps(ANSWERS, ["reference", "sparse"])
    assert reference.scores == {(0, 4096): [1.0], (PLACES - 1, 8192): [1.0]}
    assert sparse.scores == {(0, 4096): [1.0, 0.5], (PLACES - 1, 8192): [0.0]}
    assert (sparse.count, sparse.mean) == (3, 0.5)
    assert heat_maps([], ["sparse"])[0].mean == 0.0


def test_the_picture_has_axes_legend_title_and_a_cell_per_place_and_length() -> None:
    maps = heat_maps(ANSWERS, ["reference", "sparse"])
    root = ET.fromstring(draw_svg(maps, LENGTHS, 'a <model> & "more"\x1b, int8 KV'))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert 'a <model> & "more"?, int8 KV' in texts
    for label in ("length of the prompt in tokens", "place of the needle in the document", "score"):
        assert label in texts
    assert texts.count("4,096") == texts.count("8,192") == 2
    assert next(text for text in texts if text.endswith(" %")) == "0-10 %"
    cells = list(root.iter(f"{SVG}g"))
    assert len(cells) == 2 * 2 * PLACES
    hints = [cell.findtext(f"{SVG}title") or "" for cell in cells]
    assert hints.count("4,096 tokens, 0-10 %: 75.0 of 2 items") == 1
    assert hints.count("8,192 tokens, 90-100 %: 0.0 of 1 item") == 1
    assert sum(hint.endswith("no item") for hint in hints) == len(cells) - 4


def test_everything_lies_within_the_picture_and_nothing_on_another() -> None:
    maps = heat_maps(ANSWERS, ["reference", "bounded", "sparse"])
    root = ET.fromstring(draw_svg(maps, (1024, 2048, 4096), "t"))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    cells = []
    for element in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(element.get(name, -1)) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        cells.append(tuple(float(rect.get(name, -1)) for name in ("x", "y")))
    assert len(set(cells)) == len(cells) == 3 * 3 * PLACES


def test_colours_grow_lighter_with_the_score() -> None:
    def lightness(score: float) -> float:
        text = colour(score)
        red, green, blue = (int(text[at : at + 2], 16) for at in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    found = [lightness(step / 20) for step in range(21)]
    assert found == sorted(found)
    assert (colour(0.0), colour(1.0)) == ("#440154", "#fde725")
    assert (colour(-1.0), colour(2.0)) == (colour(0.0), colour(1.0))
    assert colour(0.5) == "#21918c"


@pytest.mark.parametrize("title", ["plain", "<script>&"])
def test_a_page_holds_the_picture_and_its_title_as_text(title: str) -> None:
    svg = draw_svg(heat_maps(ANSWERS, ["sparse"]), LENGTHS, title)
    page = as_html(svg, title)
    assert svg in page
    assert "<script>" not in page
