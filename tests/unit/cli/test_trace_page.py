from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.cli.block_trace import CODE_READ, CODE_SHARE_MAX, figures_of, merge_blocks, share_codes
from ellm.cli.trace_page import BlockTrace, trace_page

VOID = {"meta", "br", "link", "img", "input"}
HOSTILE = "</script></div><script>alert(1)</script><img src=x onerror='a()'><!--\"&amp;$title ${x}"


class Page(HTMLParser):
    """A parsed page: its elements with their text, and a check that every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[dict[str, Any]] = []
        self.comments: list[str] = []
        self._open: list[dict[str, Any]] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = {"tag": tag, "text": "", **dict(attrs)}
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append({"tag": tag, "text": "", **dict(attrs)})

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()["tag"] == tag

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element["text"] += data

    def all(self, **wanted: str) -> list[dict[str, Any]]:
        return [
            element
            for element in self.elements
            if all(value in (element.get(key) or "").split() for key, value in wanted.items())
        ]

    def fact(self, name: str) -> str:
        terms = [element["text"] for element in self.all(tag="dt")]
        return str(self.all(tag="dd")[terms.index(name)]["text"])

    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.all(id="data")[0]["text"]))


def a_trace(blocks: int = 20, rows: int = 3, **changes: Any) -> BlockTrace:
    """A trace of 2 layers and 2 KV heads that reads only the first block and the window."""
    prompt_tokens = 64 * blocks - rows - 1
    read = np.zeros((rows, 2, 2, blocks), np.bool_)
    read[..., 0] = read[..., -9:] = True
    shares = np.zeros(read.shape, np.float32)
    shares[..., 0] = 0.5
    trace = BlockTrace(
        shares=shares,
        read=read,
        positions=np.arange(rows) + prompt_tokens - 1,
        block_texts=[f"text {block}." for block in range(blocks)],
        answer_pieces=[f" p{row}" for row in range(rows)],
        prompt_tokens=prompt_tokens,
        mode="sparse",
        mass=0.95,
        model="a model",
        question="a question?",
    )
    return replace(trace, **changes)


def unpacked(text: str, *shape: int) -> NDArray[np.uint8]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(shape)


def block_texts(page: Page) -> list[str]:
    return [element["text"] for element in page.all(tag="div", **{"class": "text"})]


def test_the_page_shows_question_answer_document_and_facts() -> None:
    page = Page(trace_page(a_trace()))
    assert page.all(tag="title")[0]["text"] == "Where the answer came from: a question?"
    assert page.all(tag="p", **{"class": "question"})[0]["text"] == "a question?"
    assert [piece["text"] for piece in page.all(**{"class": "piece"})] == [" p0", " p1", " p2"]
    assert block_texts(page) == [f"text {block}." for block in range(20)]
    assert page.fact("Model") == "a model"
    assert page.fact("Attention") == "sparse, mass 0.95"
    assert page.fact("Prompt") == "1,276 tokens"
    assert page.fact("Answer") == "3 tokens"


def test_the_top_passages_leave_out_what_is_always_read() -> None:
    trace = a_trace()
    trace.shares[1, 1, 0, 7] = 0.4
    trace.shares[2, 0, 1, 4] = 0.1
    trace.shares[..., 11:] = 0.05  # the window
    page = Page(trace_page(trace))
    assert [quote["text"] for quote in page.all(tag="blockquote")] == ["text 7.", "text 4."]
    told = [
        element["text"] for element in page.all(tag="li") if "into the prompt" in element["text"]
    ]
    # 0.4 in one of three rows and two layers.
    assert "Tokens 448 to 511, 35% into the prompt. Share 6.7%" in told[0]
    assert "most 40%, in layer 1 for answer token 2 p1" in told[0]
    assert [link["href"] for link in page.all(tag="a")] == ["#b7", "#b4"]
    assert page.all(id="b7")


def test_at_most_ten_passages_are_quoted_largest_first() -> None:
    trace = a_trace(blocks=40)
    trace.shares[..., 1:31] = np.arange(1, 31, dtype=np.float32) / 100
    quotes = [quote["text"] for quote in Page(trace_page(trace)).all(tag="blockquote")]
    assert quotes == [f"text {block}." for block in range(30, 20, -1)]


def test_a_short_prompt_has_no_passages_that_compete() -> None:
    page = Page(trace_page(a_trace(blocks=9)))
    assert not page.all(tag="blockquote")
    assert any("always read" in element["text"] for element in page.all(tag="p"))


def test_the_totals_count_blocks_and_skipped_attention() -> None:
    trace = a_trace()
    trace.read[0, 0, 0, 5] = True
    trace.shares[2, 1, 0, 6] = 0.25
    page = Page(trace_page(trace))
    # 10 of 20 blocks for 3 rows, 2 layers, 2 heads, and one more.
    assert page.fact("Blocks read").startswith("121 of 240 (50%)")
    assert page.fact("Never read") == "9 of 20 blocks"
    assert page.fact("Attention skipped").startswith("at most 2.1% on average, and at most 25%")
    assert "answer token 3, layer 1" in page.fact("Attention skipped")


def test_where_everything_is_read_nothing_is_skipped() -> None:
    trace = a_trace(mode="exact", read=np.ones((3, 2, 2, 20), np.bool_))
    page = Page(trace_page(trace))
    assert page.fact("Attention") == "exact"
    assert page.fact("Attention skipped") == "none"
    assert page.fact("Never read") == "0 of 20 blocks"
    assert not page.all(**{"class": "unread"})


def test_blocks_that_no_layer_read_are_marked_and_so_are_those_always_read() -> None:
    page = Page(trace_page(a_trace()))
    assert [block["id"] for block in page.all(**{"class": "unread"})] == [
        f"b{block}" for block in range(1, 11)
    ]
    labels = [block["text"] for block in page.all(**{"class": "at"})]
    assert "first block" in labels[0]
    assert not any("window" in label for label in labels[:11])
    assert all("window" in label for label in labels[11:])


def test_blocks_of_the_answer_are_marked_and_not_counted_before_they_are_there() -> None:
    # The first row stands in block 11, the second in block 12.
    trace = a_trace(blocks=13, rows=2, prompt_tokens=768, positions=np.array([767, 768]))
    trace.read[...] = True
    trace.shares[0, ..., 12] = 0.9  # cannot be: not written yet
    trace.shares[1, ..., 12] = 0.2
    page = Page(trace_page(trace))
    assert page.fact("Blocks read").startswith("100 of 100")
    assert "answer" in page.all(**{"class": "at"})[12]["text"]
    assert page.data()["seen"] == [12, 13]
    assert page.data()["share"][12] == pytest.approx(0.2)


def test_the_maps_hold_the_strongest_head_and_who_read() -> None:
    trace = a_trace()
    trace.shares[1, 1, :, 7] = 0.1, 0.36
    trace.read[1, 1, 0, 7] = True
    trace.shares[2, 1, 1, 7] = 0.12
    data = Page(trace_page(trace)).data()
    assert data["width"] == 1
    tokens = unpacked(data["tokenMaps"], 3, 2, 20)
    assert tokens[1, 1, 7] == CODE_READ | round(0.6 * CODE_SHARE_MAX)
    assert tokens[2, 1, 7] == round(0.12**0.5 * CODE_SHARE_MAX)
    assert tokens[0, 1, 7] == 0
    assert unpacked(data["mapShare"], 2, 20)[1, 7] == round(255 * 0.16**0.5)
    assert unpacked(data["mapRead"], 2, 20)[1, 7] == 85
    assert unpacked(data["mapSkipped"], 2, 20)[1, 7] == round(255 * 0.04 / 0.16)


def test_merged_blocks_keep_the_largest_share_and_were_read_where_one_was() -> None:
    share = np.array([[0.0, 0.25, 1.0, 0.0, 0.09]], np.float32)
    codes = share_codes(share, np.array([[True, False, False, False, True]]))
    half, whole, third = (round(CODE_SHARE_MAX * root) for root in (0.5, 1.0, 0.3))
    assert merge_blocks(codes, 2).tolist() == [[CODE_READ | half, whole, CODE_READ | third]]


def test_shares_of_a_long_prompt_stay_apart_from_none() -> None:
    assert share_codes(np.array([2e-5], np.float32), np.array([False])) == [1]


def test_the_figures_bound_what_is_skipped_and_given_to_the_document() -> None:
    trace = a_trace()
    trace.shares[0, 0, 0, 1:11] = 0.2  # largest of several heads: more than 1 together
    figures = figures_of(trace)
    assert figures.row_skipped.tolist() == [0.25, 0, 0]
    assert figures.row_far.tolist() == [0.25, 0, 0]
    assert figures.most_skipped == 1


@pytest.mark.parametrize("field", ["question", "model", "mode"])
def test_hostile_text_stays_text(field: str) -> None:
    texts, pieces = [HOSTILE] * 20, [HOSTILE] * 3
    changes: dict[str, Any] = {field: HOSTILE}
    trace = a_trace(block_texts=texts, answer_pieces=pieces, **changes)
    trace.shares[..., 5] = 0.1
    page = Page(trace_page(trace))
    assert len(page.all(tag="script")) == 2
    assert not page.all(tag="img")
    assert not page.comments
    assert not [key for element in page.elements for key in element if key.startswith("on")]
    assert block_texts(page) == texts
    assert [piece["text"] for piece in page.all(**{"class": "piece"})] == pieces
    assert page.all(tag="blockquote")[0]["text"] == HOSTILE
    shown = {
        "question": page.all(tag="p", **{"class": "question"})[0]["text"],
        "model": page.fact("Model"),
        "mode": page.fact("Attention").removesuffix(", mass 0.95"),
    }
    assert shown[field] == HOSTILE


def test_the_script_gets_no_text_from_outside() -> None:
    word = "unmistakable"
    trace = a_trace(block_texts=[word] * 20, answer_pieces=[word] * 3, question=word, model=word)
    page = Page(trace_page(trace))
    assert not [script for script in page.all(tag="script") if word in script["text"]]


def test_what_html_and_utf8_refuse_is_replaced() -> None:
    texts = ["nul \0, half \ud800, bell \a", "a\r\nb\rc\td"] + [""] * 18
    html = trace_page(a_trace(block_texts=texts))
    assert html.encode()
    assert block_texts(Page(html))[:2] == ["nul \ufffd, half \ufffd, bell \ufffd", "a\nb\nc\td"]


def test_tokens_that_would_be_invisible_are_marked() -> None:
    page = Page(trace_page(a_trace(answer_pieces=["", "\n\n", " a"])))
    assert [piece["class"] for piece in page.all(**{"class": "piece"})] == [
        "piece empty",
        "piece newline",
        "piece",
    ]


def test_only_the_pages_own_script_may_run_and_nothing_is_fetched() -> None:
    html = trace_page(a_trace())
    page = Page(html)
    script = next(script for script in page.all(tag="script") if "type" not in script)
    policy = page.all(**{"http-equiv": "Content-Security-Policy"})[0]["content"]
    digest = base64.b64encode(hashlib.sha256(script["text"].encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert not [element for element in page.elements if "src" in element]
    assert not re.search(r"https?:|url\(|@import", html)


def test_every_placeholder_is_filled_and_every_reference_has_its_element() -> None:
    page = Page(trace_page(a_trace()))
    assert "$" not in "".join(
        str(value)
        for element in page.elements
        if element["tag"] not in {"html", "body", "script"}  # the script has templates of its own
        for value in element.values()
    )
    ids = [element["id"] for element in page.elements if "id" in element]
    assert len(ids) == len(set(ids))
    for element in page.elements:
        assert set((element.get("aria-labelledby") or "").split()) <= set(ids)


def test_a_large_trace_fits_by_merging_blocks_and_says_so() -> None:
    rows, layers, heads, blocks = 256, 32, 2, 2048
    generator = np.random.default_rng(0)
    one_head = generator.random((rows, layers, 1, blocks), np.float32)
    shape = (rows, layers, heads, blocks)
    trace = BlockTrace(
        shares=np.broadcast_to(one_head, shape),
        read=np.broadcast_to(one_head > 0.5, shape),
        positions=np.full(rows, 64 * blocks - 1),
        block_texts=["<&" * 500] * blocks,
        answer_pieces=["<&" * 300] * rows,
        prompt_tokens=64 * blocks - rows,
        mode="sparse",
        mass=0.95,
        model="<" * 100_000,
        question="&" * 100_000,
    )
    html = trace_page(trace)
    assert len(html.encode()) < 8_000_000
    stored = re.search(r'id="data">(.*?)</script>', html)
    assert stored
    data = json.loads(stored[1])
    assert data["width"] > 1
    assert f"{data['width']} blocks as one cell" in html
    assert unpacked(data["tokenMaps"], rows, layers, -(-blocks // data["width"])).any()
    assert "Blocks are cut after" in html


@pytest.mark.parametrize(
    "changes",
    [
        {"answer_pieces": []},
        {"block_texts": ["one"]},
        {"read": np.zeros((3, 2, 2, 19), np.bool_)},
        {"positions": np.zeros(2, np.int64)},
        {"positions": np.array([-1, 0, 1])},
        {"shares": np.zeros((3, 2, 20), np.float32)},
    ],
)
def test_a_trace_whose_lengths_disagree_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"shares|position"):
        a_trace(**changes)
