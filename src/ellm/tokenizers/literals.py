"""Finds tokens that are matched in text as they stand, before any merging."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class LiteralMatcher:
    """Finds the leftmost longest occurrences of a fixed set of strings.

    llama.cpp takes the longest string of the whole text first. The two differ only where one
    string overlaps the end of another, which no known vocabulary has.
    """

    def __init__(self, literals: Mapping[str, int]) -> None:
        """Prepare to find the keys of `literals`; no key is empty."""
        self._ids = dict(literals)
        lengths: dict[str, set[int]] = {}
        singles = {text for text in literals if len(text) == 1}
        for text in literals:
            start = text[0] if text[0] in singles else text[:2]
            lengths.setdefault(start, set()).add(len(text))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        # A regular expression of all 6,400 literals of Gemma takes long to compile and to run.
        # Their first two characters are few; from there one set look-up per length decides.
        self._starts = re.compile("|".join(map(re.escape, sorted(lengths)))) if lengths else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, id) of each occurrence, left to right, without overlaps."""
        if self._starts is None:
            return
        position = 0
        while (match := self._starts.search(text, position)) is not None:
            start = match.start()
            position = start + 1
            for length in self._lengths[match[0]]:
                token_id = self._ids.get(text[start : start + length])
                if token_id is not None:
                    position = start + length
                    yield start, position, token_id
                    break
