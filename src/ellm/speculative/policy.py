"""How many guesses to check: as many as bring the most tokens per second, none where few do.

A step over one more row brings a token with the chance that this guess and all before it are
right. Source: Leviathan et al. 2023 (arXiv 2211.17192), section 3.3, with measured step times in
the place of assumed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from ellm.speculative.source import Outlook

# Less is not worth the risk that a time or a chance is off.
LEAST_GAIN = 1.05
# Tokens over which reading a text for a source has to pay back: most answers are no longer.
PAYBACK_TOKENS = 256

Seconds = Callable[[int], float]
"""What a step takes by its number of rows."""


def expected_tokens(chances: Sequence[float]) -> float:
    """Return the tokens that one row and guesses with these chances bring."""
    return 1 + sum(_products(chances))


def share_rows(chances: Sequence[Sequence[float]], seconds: Seconds, *, most: int) -> list[int]:
    """Return how many guesses of each sequence to check in one step, each sequence having one row.

    Args:
        chances: Of every sequence's guesses.
        seconds: Time of a step by rows.
        most: Most guesses in all.
    """
    rows = len(chances)
    gains = sorted(
        (
            (gain, -position, index)
            for index, row in enumerate(chances)
            for position, gain in enumerate(_products(row))
        ),
        reverse=True,
    )
    tokens = float(rows)
    least = LEAST_GAIN * rows / seconds(rows)
    best_rate, best_count = least, 0
    for count, (gain, _, _) in enumerate(gains[:most], 1):
        tokens += gain
        rate = tokens / seconds(rows + count)
        if rate > best_rate:
            best_rate, best_count = rate, count
    lengths = [0] * rows
    for _, _, index in gains[:best_count]:
        lengths[index] += 1
    return lengths


def best_rate(chances: Sequence[float], seconds: Seconds, *, rows: int) -> float:
    """Return the most tokens per second that guesses for one of `rows` sequences bring."""
    tokens = accumulate(_products(chances), initial=float(rows))
    return max(total / seconds(rows + count) for count, total in enumerate(tokens))


def costly_rate(outlook: Outlook, seconds: Seconds, *, rows: int, most: int) -> float:
    """Return the most tokens per second to expect of a source whose guesses take time."""
    rates = [
        (rows - 1 + expected_tokens([outlook.chance] * count))
        / (seconds(rows + count) + outlook.first_seconds + count * outlook.seconds_per_token)
        for count in range(1, min(most, outlook.most) + 1)
    ]
    return max(rates, default=0.0)


def pays_back(outlook: Outlook, *, rate: float, expected: float, tokens: int) -> bool:
    """Return whether a source that takes time is worth asking.

    Args:
        outlook: Of the source.
        rate: Tokens per second without it, with the gain wanted.
        expected: Tokens per second with it.
        tokens: Tokens that the answer may still have.
    """
    if expected <= rate:
        return False
    saved = (1 / rate - 1 / expected) * min(tokens, PAYBACK_TOKENS)
    return saved >= outlook.setup_seconds


def pays_to_go_on(chances: Sequence[float], outlook: Outlook, seconds: Seconds, rows: int) -> bool:
    """Return whether one more guess is expected to raise the rate.

    Args:
        chances: Of the guesses that were made.
        outlook: What the next one is expected to bring.
        seconds: Time of a step by rows.
        rows: Sequences that share the step.
    """

    def rate(found: Sequence[float]) -> float:
        spent = outlook.first_seconds + len(found) * outlook.seconds_per_token
        return (rows - 1 + expected_tokens(found)) / (seconds(rows + len(found)) + spent)

    return rate([*chances, outlook.chance]) > rate(chances)


def _products(chances: Sequence[float]) -> list[float]:
    """Return for each guess the chance that it and all before it are right."""
    products: list[float] = []
    for chance in chances:
        products.append(chance * (products[-1] if products else 1.0))
    return products
