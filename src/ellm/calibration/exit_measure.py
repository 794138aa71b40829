"""Measures exits: how often they agree with the whole model, and what a step through one takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from ellm.calibration.exit_texts import PROMPT_TOKENS
from ellm.program.executor import SequenceRows, Tokens
from ellm.program.exit_figures import MAX_CHAIN
from ellm.program.exits import ExitExecutor

ANSWER_TOKENS = 64
TIMED_ROUNDS = 11
DEPTH_TOKENS = PROMPT_TOKENS + ANSWER_TOKENS
"""Context at which steps are timed: that of the answers."""

OnStep = Callable[[], None]
Clock = Callable[[], float]


def answer(
    executor: ExitExecutor, prompts: Sequence[Tokens], blocks: Sequence[Tokens], on_step: OnStep
) -> Tokens:
    """Let the whole model go on with prompts, greedily and all in one step at a time.

    Exits are judged on what the model itself writes: they would draft that, and a given text is
    harder to agree on.

    Args:
        executor: Its blocks hold the prompts and answers afterwards.
        prompts: int32 (128,) each.
        blocks: Ids of the KV blocks of each.
        on_step: Called after each step.

    Returns:
        int32 (n, 65): the likeliest token after each prompt, and after each of 64 that were fed.
    """
    last = np.array([PROMPT_TOKENS - 1], dtype=np.int32)
    answers = np.empty((len(prompts), ANSWER_TOKENS + 1), dtype=np.int32)
    for index, (prompt, ids) in enumerate(zip(prompts, blocks, strict=True)):
        logits = executor.step(prompt, [SequenceRows(ids, 0, PROMPT_TOKENS)], last)
        answers[index, 0] = logits[0].argmax()
        on_step()
    every = np.arange(len(prompts), dtype=np.int32)
    for fed in range(ANSWER_TOKENS):
        rows = [SequenceRows(ids, PROMPT_TOKENS + fed, 1) for ids in blocks]
        logits = executor.step(np.ascontiguousarray(answers[:, fed]), rows, every)
        answers[:, fed + 1] = logits.argmax(axis=1)
        on_step()
    return answers


def count_agreed(
    executor: ExitExecutor, layer: int, answers: Tokens, blocks: Sequence[Tokens], on_step: OnStep
) -> int:
    """Return at how many of the 64 tokens of each answer an exit predicts the one that follows."""
    every = np.arange(ANSWER_TOKENS, dtype=np.int32)
    agreed = 0
    for tokens, ids in zip(answers, blocks, strict=True):
        rows = [SequenceRows(ids, PROMPT_TOKENS, ANSWER_TOKENS)]
        logits = executor.step_exit(layer, tokens[:-1], rows, every)
        agreed += int((logits.argmax(axis=1) == tokens[1:]).sum())
        on_step()
    return agreed


def time_exits(
    executor: ExitExecutor, layers: Sequence[int], blocks: Tokens, clock: Clock, on_step: OnStep
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Time whole steps of 1 to 5 rows, and steps of one row through each exit.

    They take turns, so that whatever else the machine does slows all of them; the first round
    warms up.

    Args:
        executor: Has 192 tokens in the blocks.
        layers: Of its exits.
        blocks: KV block ids with room for 197 tokens.
        clock: Returns seconds.
        on_step: Called after each step.

    Returns:
        Median seconds by rows, and by exit.
    """

    def timed(rows: int, layer: int | None) -> float:
        tokens = np.zeros(rows, dtype=np.int32)
        wanted = np.arange(rows, dtype=np.int32)
        sequence = [SequenceRows(blocks, DEPTH_TOKENS, rows)]
        started = clock()
        if layer is None:
            executor.step(tokens, sequence, wanted)
        else:
            executor.step_exit(layer, tokens, sequence, wanted)
        seconds = clock() - started
        on_step()
        return seconds

    kinds: list[tuple[int, int | None]] = [(rows, None) for rows in range(1, MAX_CHAIN + 2)]
    kinds += [(1, layer) for layer in layers]
    rounds = [[timed(*kind) for kind in kinds] for _ in range(TIMED_ROUNDS + 1)][1:]
    medians = [statistics.median(taken) for taken in zip(*rounds, strict=True)]
    return tuple(medians[: MAX_CHAIN + 1]), tuple(medians[MAX_CHAIN + 1 :])
