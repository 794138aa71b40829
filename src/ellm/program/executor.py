"""What runs a program: the protocol of executors and the rows of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ellm.errors import CapacityError, RequestError

BLOCK_TOKENS = 64
# Of the bytes of a stored block and of how they are computed; raised when either changes, so that
# blocks of earlier versions on disk are not found any more.
KV_FORMAT_VERSION = 1
NUM_COUNTS = 5  # columns of `RowChoices.counts`
GROUP_TOKENS = 16  # ids of a vocabulary group, as many as a tile of the head has rows

Tokens = NDArray[np.int32]
Logits = NDArray[np.float32]
Floats = NDArray[np.float32]


class Estimate(Enum):
    """What the attention that a block holds is estimated from."""

    EXACT = "exact"  # all bits of the keys: the mode `bounded`
    SCAN = "scan"  # the upper four bits of the keys: the mode `sparse`
    MEAN = "mean"  # the mean of the keys: a baseline that loses single tokens


@dataclass(frozen=True, slots=True, eq=False)
class HeadFactors:
    """What calibration found about heads.

    Attributes:
        allowances: float32 (L, Hkv), how many times `1 - mass` a KV head may skip; 0 reads all
            blocks, infinity none but those always read, the others not through their means either.
        scales: float32 (L, Hq), factor on the masses that `Estimate.SCAN` finds.
    """

    allowances: Floats
    scales: Floats


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """How rows choose the stored KV blocks that they read in full.

    The first block, the last 8 and the row's own are always read; blocks that are not read enter
    through their mass and the mean of their values.

    Attributes:
        estimate: Where the masses come from.
        mass: Share of the attention that the blocks read must hold, above 0 to 1; 1 reads all.
        max_blocks: Most blocks besides those always read; None is no limit.
        heads: How heads differ; None is not at all.
    """

    estimate: Estimate
    mass: float
    max_blocks: int | None = None
    heads: HeadFactors | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What rows with a choice saw; the executor fills the arrays that are given.

    Shapes have the layers L, KV heads or query heads, and B blocks, as many as the last row sees
    at least. Rows without blocks to choose from, and layers with a sliding window, leave zeros.

    Attributes:
        shares: float32 (T, L, Hkv, B): largest share of a query head's attention that a block
            holds, negative where the block was not read.
        exact, scan, mean: float32 (T, L, Hq, B): logarithm of the block's mass by each estimate;
            of the row's own block, where B has room for it, it is exact.
    """

    shares: Floats | None = None
    exact: Floats | None = None
    scan: Floats | None = None
    mean: Floats | None = None


@dataclass(frozen=True, slots=True)
class RowChoices:
    """A rule for the rows of a sequence in one step, and what it did.

    Attributes:
        rule: For all of the rows.
        counts: float64 (T, 5), filled by the step, sums over layers and KV heads: stored blocks,
            blocks read, times more than 64 blocks were needed, skipped share of the attention
            summed over query heads, query heads in that sum.
        observed: What else is wanted.
    """

    rule: ChoiceRule
    counts: NDArray[np.float64]
    observed: Observation | None = None


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The consecutive rows of one sequence in a step.

    Attributes:
        blocks: Ids of the sequence's KV blocks in order, int32; block i holds its tokens
            64 i .. 64 i + 63. Enough of them for `start + count` tokens.
        start: Position of the first row: the tokens before it are in the blocks already. Running
            again from an earlier start overwrites what was there.
        count: Rows, at least 1.
        choices: How the rows choose the blocks they read; None reads all.
    """

    blocks: NDArray[np.int32]
    start: int
    count: int
    choices: RowChoices | None = None


class Executor(Protocol):
    """Runs a program, one step at a time, over KV blocks that it owns.

    Attributes:
        max_rows: Most rows of a step.
        num_blocks: KV blocks there are; their ids are 0 .. num_blocks - 1.
        vocab_size: V.
    """

    @property
    def max_rows(self) -> int:
        """Most rows of a step."""

    @property
    def num_blocks(self) -> int:
        """KV blocks there are."""

    @property
    def vocab_size(self) -> int:
        """V, the width of logits."""

    def step(self, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens) -> Logits:
        """Run every op over the rows and return logits float32 (n, V).

        Args:
            tokens: Token ids (T,), int32; the rows of a sequence are consecutive.
            rows: The sequences in the order of their tokens; no block is in two of them unless
                neither writes to it.
            logits_rows: Rows (n,), int32, whose logits are wanted, in this order.

        Raises:
            RequestError: The arguments do not fit together or the program.
            CapacityError: There are more rows than `max_rows`.
            AbortedError: `abort` was called while the step ran; what its rows wrote to KV is
                undefined, everything before `start` is intact.
        """

    def abort(self) -> None:
        """End the running step before its next op, from any thread; without one do nothing."""

    def forget(self, blocks: NDArray[np.int32]) -> None:
        """Take note that the sequences that used these KV blocks have ended."""


class TrimmedExecutor(Executor, Protocol):
    """An executor whose head can leave out a part of the vocabulary."""

    def step_trimmed(
        self,
        tokens: Tokens,
        rows: Sequence[SequenceRows],
        logits_rows: Tokens,
        groups: Tokens,
    ) -> Logits:
        """Run a step; return logits float32 (n, V) that are minus infinity outside of `groups`.

        As `Executor.step` in everything else, the other logits included.

        Args:
            tokens: As in `Executor.step`.
            rows: As in `Executor.step`.
            logits_rows: As in `Executor.step`.
            groups: Vocabulary groups (G,), int32, ascending; group g is ids 16 g .. 16 g + 15.

        Raises:
            RequestError: A group is out of range or not above the one before it, or as
                `Executor.step` does.
            CapacityError: As `Executor.step`.
            AbortedError: As `Executor.step`.
        """


def check_groups(executor: Executor, groups: Tokens) -> None:
    """Check the vocabulary groups of a step.

    Raises:
        RequestError: One is out of range, or they do not ascend.
    """
    _check_range("vocabulary group", groups, -(-executor.vocab_size // GROUP_TOKENS))
    wrong = groups[1:][np.diff(groups) <= 0]
    if wrong.size:
        raise RequestError(f"vocabulary group {wrong[0]}; expected it above the one before it")


def check_step(
    executor: Executor, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens
) -> None:
    """Check the arguments of a step before any work.

    Raises:
        RequestError: They do not fit together or the program.
        CapacityError: There are more rows than `max_rows`.
    """
    total = tokens.size
    if total > executor.max_rows:
        raise CapacityError(
            f"a step of {total} rows; the executor takes {executor.max_rows}",
            needed=total,
            available=executor.max_rows,
        )
    counted = sum(sequence.count for sequence in rows)
    if not total or counted != total:
        raise RequestError(f"{total} tokens for {counted} rows; expected one token per row")
    _check_range("token id", tokens, executor.vocab_size)
    _check_range("logits row", logits_rows, total)
    for sequence in rows:
        if sequence.start < 0 or sequence.count < 1:
            raise RequestError(
                f"rows from {sequence.start}, {sequence.count} of them; expected at least one "
                "from position 0 on"
            )
        needed = -(-(sequence.start + sequence.count) // BLOCK_TOKENS)
        if sequence.blocks.size < needed:
            raise RequestError(
                f"{sequence.blocks.size} KV blocks for {sequence.start + sequence.count} tokens; "
                f"expected {needed}"
            )
        _check_range("KV block id", sequence.blocks, executor.num_blocks)
        if sequence.choices is not None:
            _check_rule(sequence.choices.rule)


def _check_rule(rule: ChoiceRule) -> None:
    if not 0 < rule.mass <= 1 or (rule.max_blocks is not None and rule.max_blocks < 0):
        raise RequestError(
            f"a rule of mass {rule.mass} and {rule.max_blocks} blocks; expected a mass above 0 to "
            "1 and at least 0 blocks"
        )


def _check_range(what: str, values: NDArray[np.int32], end: int) -> None:
    if values.ndim != 1:
        raise RequestError(f"{what}s of shape {values.shape}; expected one dimension")
    outside = values[(values < 0) | (values >= end)]
    if outside.size:
        raise RequestError(f"{what} {outside[0]}; expected 0 to {end - 1}")
