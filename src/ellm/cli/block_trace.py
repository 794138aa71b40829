"""Which KV blocks were read for an answer, and the figures that a page shows of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ellm.program.executor import BLOCK_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What every row reads besides what it chooses: its own block, these before it, and the first.
WINDOW_BLOCKS = 8

CODE_READ = 0x80
CODE_SHARE_MAX = 0x7F


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTrace:
    """Which blocks the rows of an answer read; R rows, L layers, H KV heads, B blocks.

    Attributes:
        shares: float32 (R, L, H, B), share of the row's attention that the block holds: the largest
            among the query heads of the group.
        read: bool (R, L, H, B), whether the block was read, and not only through its mean.
        positions: int (R,), absolute position of each row.
        block_texts: Text of each block's tokens, B of them.
        answer_pieces: Text of the token that each row led to, R of them.
        prompt_tokens: Tokens before the answer.
        mode: Name of the attention mode.
        mass: Share of the attention that the blocks read had to hold.
        model: Name of the model.
        question: What was asked.

    Raises:
        ValueError: There is no row or block, or lengths disagree.
    """

    shares: NDArray[np.float32]
    read: NDArray[np.bool_]
    positions: NDArray[np.int64]
    block_texts: list[str]
    answer_pieces: list[str]
    prompt_tokens: int
    mode: str
    mass: float
    model: str
    question: str

    def __post_init__(self) -> None:
        """Check that every length fits the others."""
        rows, blocks = len(self.answer_pieces), len(self.block_texts)
        shape = self.shares.shape
        if len(shape) != 4 or 0 in shape or (shape[0], shape[3]) != (rows, blocks):
            raise ValueError(f"shares {shape} for {rows} rows and {blocks} blocks")
        if self.read.shape != shape or self.positions.shape != (rows,):
            raise ValueError(f"shares {shape}, {self.read.shape=}, {self.positions.shape=}")
        if self.positions.min() < 0:
            raise ValueError(f"position {self.positions.min()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFigures:
    """What a page shows of a trace; "share" is here that of the head of a layer that gave most.

    The strongest head was preferred to the mean of all: few heads look things up, and the others
    would hide them. Means are over the rows that could see a block.

    Attributes:
        map_share: float64 (L, B), mean over rows of the share.
        map_skipped: float64 (L, B), the part of it from rows that did not read the block.
        map_read: float64 (L, B), share of rows for which a head read the block.
        block_share: float64 (B,), mean of `map_share` over layers.
        block_read: float64 (B,), mean of `map_read` over layers.
        peak: float32 (B,), largest share, and `peak_row`, `peak_layer` int64 (B,), where.
        codes: uint8 (R, L, B), see `share_codes`.
        seen_blocks: int64 (R,), blocks that begin at or before the row.
        row_seen: int64 (R,), those blocks counted for each layer and KV head, and `row_read`, how
            many of these were read.
        row_skipped: float64 (R,), share held by blocks not read, mean over layers and KV heads;
            an upper bound, as shares are the largest of their groups.
        row_far: float64 (R,), the same of `document_blocks`, read or not.
        most_skipped: The largest share skipped by one row, layer and KV head, and
            `most_skipped_at`, its row and layer.
    """

    map_share: NDArray[np.float64]
    map_skipped: NDArray[np.float64]
    map_read: NDArray[np.float64]
    block_share: NDArray[np.float64]
    block_read: NDArray[np.float64]
    peak: NDArray[np.float32]
    peak_row: NDArray[np.int64]
    peak_layer: NDArray[np.int64]
    codes: NDArray[np.uint8]
    seen_blocks: NDArray[np.int64]
    row_seen: NDArray[np.int64]
    row_read: NDArray[np.int64]
    row_skipped: NDArray[np.float64]
    row_far: NDArray[np.float64]
    most_skipped: float
    most_skipped_at: tuple[int, int]

    def top_blocks(self, among: range, count: int) -> list[int]:
        """Return the blocks with the largest shares, largest first, none without a share."""
        order = sorted(among, key=lambda block: -self.block_share[block])
        return [block for block in order[:count] if self.block_share[block] > 0]


def document_blocks(trace: BlockTrace) -> range:
    """Return the blocks of the prompt that compete: without the first, and in no row's window."""
    of_prompt = -(-trace.prompt_tokens // BLOCK_TOKENS)
    window = int(trace.positions.min()) // BLOCK_TOKENS - WINDOW_BLOCKS
    return range(1, max(1, min(of_prompt, window)))


def share_codes(share: NDArray[np.float32], read: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return a byte per block: the root of the share in 7 bits, and whether it was read above.

    The root keeps shares from 2e-5 on apart from none; with 1/127 steps of the share itself, a
    block of a long document would almost never differ from zero.
    """
    code: NDArray[np.uint8] = np.rint(np.sqrt(np.clip(share, 0, 1)) * CODE_SHARE_MAX).astype("u1")
    code[read] |= CODE_READ
    return code


def figures_of(trace: BlockTrace) -> TraceFigures:
    """Return the figures; heads are folded row by row, as a whole trace may be half a GB."""
    rows, layers, heads, blocks = trace.shares.shape
    far = document_blocks(trace)
    seen = np.minimum(trace.positions // BLOCK_TOKENS + 1, blocks).astype(np.int64)
    strongest = np.zeros((rows, layers, blocks), np.float32)
    read = np.zeros((rows, layers, blocks), np.bool_)
    skipped, given = np.zeros((2, rows, layers, heads))
    row_read = np.zeros(rows, np.int64)
    for row, count in enumerate(seen):
        its_share, its_read = trace.shares[row, :, :, :count], trace.read[row, :, :, :count]
        strongest[row, :, :count] = its_share.max(axis=1)
        read[row, :, :count] = its_read.any(axis=1)
        skipped[row] = its_share.sum(axis=-1, where=~its_read)
        given[row] = its_share[:, :, far.start : far.stop].sum(axis=-1)
        row_read[row] = np.count_nonzero(its_read)
    skipped, given = np.minimum(skipped, 1), np.minimum(given, 1)
    rows_that_see = np.maximum((seen[:, None] > np.arange(blocks)).sum(axis=0), 1)
    map_share = strongest.sum(axis=0, dtype=np.float64) / rows_that_see
    map_skipped = strongest.sum(axis=0, dtype=np.float64, where=~read) / rows_that_see
    map_read = read.sum(axis=0) / rows_that_see
    peak_row, peak_layer = np.divmod(strongest.reshape(-1, blocks).argmax(axis=0), layers)
    worst_row, worst_layer, _ = np.unravel_index(skipped.argmax(), skipped.shape)
    return TraceFigures(
        map_share=map_share,
        map_skipped=map_skipped,
        map_read=map_read,
        block_share=map_share.mean(axis=0),
        block_read=map_read.mean(axis=0),
        peak=strongest.max(axis=(0, 1)),
        peak_row=peak_row,
        peak_layer=peak_layer,
        codes=share_codes(strongest, read),
        seen_blocks=seen,
        row_seen=seen * layers * heads,
        row_read=row_read,
        row_skipped=skipped.mean(axis=(1, 2)),
        row_far=given.mean(axis=(1, 2)),
        most_skipped=float(skipped.max()),
        most_skipped_at=(int(worst_row), int(worst_layer)),
    )


def merge_blocks(codes: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Return codes with `width` neighbours as one: the largest share, and read where one was."""
    starts = np.arange(0, codes.shape[-1], width)
    merged = np.maximum.reduceat(codes & CODE_SHARE_MAX, starts, axis=-1)
    merged |= np.maximum.reduceat(codes & CODE_READ, starts, axis=-1)
    return merged
