"""The page behind `ellm ask --trace`: which blocks of the prompt an answer was read from.

One file that needs no network and no library. Texts come from documents and models, so they are
untrusted: they stand in the page only as escaped text, never in scripts, and the page's own policy
lets only the one script run whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from ellm.cli.block_trace import (
    WINDOW_BLOCKS,
    BlockTrace,
    TraceFigures,
    document_blocks,
    figures_of,
    merge_blocks,
)
from ellm.program.executor import BLOCK_TOKENS
from ellm.units import count_of, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["BlockTrace", "trace_page"]

# Together below 8 MB, which opens at once and can be sent by mail.
_MAPS_BYTES = 4_500_000
_DOCUMENT_BYTES = 2_300_000
_PIECES_BYTES = 200_000
_QUESTION_CHARS = 2_000
_TITLE_CHARS = 80
_QUOTE_CHARS = 700

_QUOTES = 10
_PROFILE_BINS = 512
# Control characters and lone surrogates, which HTML or UTF-8 refuse; tab and line feed stay.
_REFUSED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def trace_page(trace: BlockTrace) -> str:
    """Return the HTML page of a trace; at most 8 MB, by wider map cells and shorter texts."""
    figures = figures_of(trace)
    texts, text_chars = _fitting(trace.block_texts, _DOCUMENT_BYTES)
    pieces, _ = _fitting(trace.answer_pieces, _PIECES_BYTES)
    maps, width = _token_maps(figures.codes)
    competing = document_blocks(trace)
    files = resources.files("ellm.cli")
    script = files.joinpath("trace_page.js").read_text(encoding="utf-8")
    question = _clipped(_clean(trace.question).strip(), _QUESTION_CHARS)
    return Template(files.joinpath("trace_page.html").read_text(encoding="utf-8")).substitute(
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        window_tokens=format_count(WINDOW_BLOCKS * BLOCK_TOKENS),
        style=files.joinpath("trace_page.css").read_text(encoding="utf-8"),
        script=script,
        title=escape(_clipped(" ".join(question.split()), _TITLE_CHARS)),
        question=escape(question),
        facts=_facts(trace, figures),
        pieces=_pieces(pieces, figures.row_far),
        profile=_profile(figures.block_share, competing),
        layers=f"{trace.shares.shape[1] - 1}",
        middle_token=format_count(len(texts) * BLOCK_TOKENS // 2),
        last_token=format_count(len(texts) * BLOCK_TOKENS),
        width_note=_width_note(width),
        quotes=_quotes(trace, figures, competing),
        text_note=_text_note(text_chars),
        blocks=_blocks(texts, figures, competing, trace.prompt_tokens),
        data=_as_json(_data(figures, maps, width, competing, trace.prompt_tokens)),
    )


def _facts(trace: BlockTrace, figures: TraceFigures) -> str:
    read, seen = int(figures.row_read.sum()), int(figures.row_seen.sum())
    never = int((figures.map_read.max(axis=0) == 0).sum())
    worst_row, worst_layer = figures.most_skipped_at
    skipped = (
        f"at most {_percent(figures.row_skipped.mean())} on average, and at most "
        f"{_percent(figures.most_skipped)} anywhere (answer token {worst_row + 1}, "
        f"layer {worst_layer})"
    )
    chosen = "" if trace.mode == "exact" else f", mass {trace.mass:g}"
    facts = (
        ("Model", escape(_clean(trace.model))),
        ("Attention", escape(_clean(trace.mode)) + chosen),
        ("Prompt", count_of(trace.prompt_tokens, "token")),
        ("Answer", count_of(len(trace.answer_pieces), "token")),
        (
            "Blocks read",
            f"{format_count(read)} of {format_count(seen)} ({_percent(read / seen)}), counted for "
            "each answer token, layer and KV head",
        ),
        ("Never read", f"{format_count(never)} of {count_of(len(trace.block_texts), 'block')}"),
        ("Attention skipped", skipped if figures.most_skipped else "none"),
    )
    return "\n".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts)


def _pieces(pieces: list[str], row_far: NDArray[np.float64]) -> str:
    """Return the answer, each token a choice, shaded by what it took from the document."""
    shade = _shades(row_far, float(row_far.max()))
    return "".join(
        f'<span class="piece{_kind(piece)}" style="--m:{shade[row]:.2f}">{piece}</span>'
        for row, piece in enumerate(pieces)
    )


def _kind(piece: str) -> str:
    """Return the class of a piece that would be invisible."""
    if not piece:
        return " empty"
    return " newline" if "\n" in piece and not piece.strip() else ""


def _quotes(trace: BlockTrace, figures: TraceFigures, competing: range) -> str:
    quotes = [
        f"<li><blockquote>{_quote(trace.block_texts[block])}</blockquote><p>"
        f'<a href="#b{block}">{_tokens_of(block)}</a>, '
        f"{_percent(block * BLOCK_TOKENS / trace.prompt_tokens)} into the prompt. "
        f"Share {_percent(figures.block_share[block])}, read in "
        f"{_percent(figures.block_read[block])} of tokens and layers; "
        f"{_peak(trace, figures, block)}.</p></li>"
        for block in figures.top_blocks(competing, _QUOTES)
    ]
    if not quotes:
        return "<p>None: each block that got attention is one that is always read.</p>"
    return f"<ol>{''.join(quotes)}</ol>"


def _quote(text: str) -> str:
    return escape(_clipped(_clean(text).strip(), _QUOTE_CHARS), quote=False)


def _peak(trace: BlockTrace, figures: TraceFigures, block: int) -> str:
    row = int(figures.peak_row[block])
    piece = escape(_clipped(_clean(trace.answer_pieces[row]).strip(), _TITLE_CHARS), quote=False)
    shown = f" <q>{piece}</q>" if piece else ""
    return (
        f"most {_percent(figures.peak[block])}, in layer {figures.peak_layer[block]} for answer "
        f"token {row + 1}{shown}"
    )


def _blocks(texts: list[str], figures: TraceFigures, competing: range, prompt_tokens: int) -> str:
    shade = _shades(figures.block_share, _largest(figures.block_share, competing))
    read = figures.map_read.max(axis=0) > 0
    parts = []
    for block, text in enumerate(texts):
        label = _label(block, competing, prompt_tokens)
        note, fixed = (f"<i>{label}</i>", " fixed") if label else ("", "")
        unread = "" if read[block] else " unread"
        parts.append(
            f'<div class="block{fixed}{unread}" id="b{block}" tabindex="-1"'
            f' style="--m:{shade[block]:.2f}"><div class="at">'
            f"{format_count(block * BLOCK_TOKENS)}<b>{_percent(figures.block_share[block])}</b>"
            f'{note}</div><div class="text">{text}</div></div>'
        )
    return "\n".join(parts)


def _label(block: int, competing: range, prompt_tokens: int) -> str:
    if block == 0:
        return "first block"
    if block * BLOCK_TOKENS >= prompt_tokens:
        return "answer"
    return "" if block in competing else "window"


def _profile(block_share: NDArray[np.float64], competing: range) -> str:
    """Return a chart of shares along the prompt, as wide as the map below it; y is 0 to 100."""
    blocks = len(block_share)
    starts = np.unique(
        np.linspace(0, blocks, min(blocks, _PROFILE_BINS), endpoint=False, dtype=int)
    )
    heights = _shades(np.maximum.reduceat(block_share, starts), _largest(block_share, competing))
    steps = "".join(
        f"L{start} {100 - 100 * height:.0f}H{stop}"
        for start, stop, height in zip(starts, [*starts[1:], blocks], heights, strict=True)
    )
    zones = ((0, competing.start), (competing.stop, blocks))
    always = "".join(
        f'<rect class="always" x="{start}" y="0" width="{stop - start}" height="100"/>'
        for start, stop in zones
    )
    return (
        f'<svg id="profile" viewBox="0 0 {blocks} 100" preserveAspectRatio="none" role="img" '
        'aria-label="Share of each block along the prompt">'
        f'<path d="M0 100{steps}V100Z"/>{always}</svg>'
    )


def _data(
    figures: TraceFigures, maps: str, width: int, competing: range, prompt_tokens: int
) -> dict[str, Any]:
    """Return the numbers for the script: no text that came from outside."""
    layers, blocks = figures.map_share.shape
    return {
        "blocks": blocks,
        "layers": layers,
        "blockTokens": BLOCK_TOKENS,
        "promptTokens": prompt_tokens,
        "competing": [competing.start, competing.stop],
        "share": _rounded(figures.block_share),
        "read": _rounded(figures.block_read),
        "peak": _rounded(figures.peak),
        "peakRow": figures.peak_row.tolist(),
        "peakLayer": figures.peak_layer.tolist(),
        "mapShare": _packed(np.rint(255 * np.sqrt(np.clip(figures.map_share, 0, 1)))),
        "mapSkipped": _packed(
            np.rint(255 * figures.map_skipped / np.where(figures.map_share, figures.map_share, 1))
        ),
        "mapRead": _packed(np.ceil(255 * figures.map_read)),
        "tokenMaps": maps,
        "width": width,
        "seen": figures.seen_blocks.tolist(),
        "rowRead": _rounded(figures.row_read / figures.row_seen),
        "rowSkipped": _rounded(figures.row_skipped),
        "rowFar": _rounded(figures.row_far),
    }


def _token_maps(codes: NDArray[np.uint8]) -> tuple[str, int]:
    """Return the maps of all tokens and how many blocks are one cell, as few as fit."""
    width, blocks = 1, codes.shape[-1]
    packed = _packed(codes)
    while len(packed) > _MAPS_BYTES and width < blocks:
        width = min(blocks, max(width + 1, width * len(packed) // _MAPS_BYTES))
        packed = _packed(merge_blocks(codes, width))
    return packed, width


def _packed(values: NDArray[Any]) -> str:
    """Return the numbers as bytes, deflated, in base64."""
    return base64.b64encode(zlib.compress(values.astype(np.uint8).tobytes())).decode()


def _as_json(values: dict[str, Any]) -> str:
    """Return JSON that may stand in a script element, whatever it holds."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _fitting(texts: Sequence[str], limit_bytes: int) -> tuple[list[str], int | None]:
    """Return the texts escaped, cut after as many characters as fit, and that number, if any."""
    clean = [_clean(text) for text in texts]
    escaped, chars = [escape(text, quote=False) for text in clean], None
    most = max(map(len, clean))
    while most > 1 and sum(len(text.encode()) for text in escaped) > limit_bytes:
        chars = most = most // 2
        escaped = [escape(_clipped(text, most), quote=False) for text in clean]
    return escaped, chars


def _clean(text: str) -> str:
    """Return the text without what HTML or UTF-8 refuse."""
    return _REFUSED.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def _clipped(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _largest(share: NDArray[np.float64], competing: range) -> float:
    """Return the largest share among blocks that compete, or of all where none does."""
    return float(share[competing.start : competing.stop].max(initial=0)) or float(share.max())


def _shades(values: NDArray[np.float64], largest: float) -> NDArray[np.float64]:
    """Return 0 to 1 for shares up to the largest, and 1 beyond."""
    return np.clip(values / (largest or 1), 0, 1)


def _rounded(values: NDArray[Any]) -> list[float]:
    return [float(f"{value:.3g}") for value in values.tolist()]


def _tokens_of(block: int) -> str:
    first = block * BLOCK_TOKENS
    return f"Tokens {format_count(first)} to {format_count(first + BLOCK_TOKENS - 1)}"


def _percent(share: float) -> str:
    """Return a percentage as HTML, with two figures and never zero for what is not."""
    percent = 100 * float(share)
    if 0 < percent < 0.01:
        return "&lt;0.01%"
    if percent < 1:
        return f"{percent:.2f}%" if percent else "0%"
    return f"{percent:.1f}%" if percent < 10 else f"{percent:.0f}%"


def _width_note(width: int) -> str:
    if width == 1:
        return ""
    return (
        f"To keep this file small, maps of single tokens show {width} blocks as one cell: the "
        "largest share, and read where one of them was."
    )


def _text_note(chars: int | None) -> str:
    return "" if chars is None else f"Blocks are cut after {count_of(chars, 'character')}."
