"""Tables of text whose columns line up."""

from __future__ import annotations

from collections.abc import Sequence

Cells = Sequence[str]


def aligned(table: Sequence[Cells]) -> list[str]:
    """Return the lines of a table whose columns end at the same place."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in table
    ]
