"""Stop strings in streamed text: found across token borders, nothing of one ever let through."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Lets text through up to the first stop string.

    Text that may be the start of a stop string is withheld until it is known not to be one. Of
    several, the one that is complete first counts; of those, the longest. So what comes out does
    not depend on how the text was cut into pieces.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Watch for the non-empty strings `stop`."""
        self._patterns = tuple(_Pattern(string) for string in stop)
        self._withheld = ""
        self._found: str | None = None

    @property
    def found(self) -> str | None:
        """The stop string that was found, or None."""
        return self._found

    def push(self, text: str) -> str:
        """Take the next piece of text and return what may be shown of it and of earlier pieces.

        After a stop string was found, everything is dropped.
        """
        if self._found is not None or not text:
            return ""
        if not self._patterns:
            return text
        buffer = self._withheld + text
        for position in range(len(self._withheld), len(buffer)):
            complete = [item.string for item in self._patterns if item.advance(buffer[position])]
            if complete:
                self._found = max(complete, key=len)
                self._withheld = ""
                return buffer[: position + 1 - len(self._found)]
        kept = max(item.matched for item in self._patterns)
        self._withheld = buffer[len(buffer) - kept :]
        return buffer[: len(buffer) - kept]

    def flush(self) -> str:
        """Return what is still withheld: the text ends here, so it starts no stop string."""
        text, self._withheld = self._withheld, ""
        for item in self._patterns:
            item.matched = 0
        return text


class _Pattern:
    """One string and how much of it the text ends with.

    Source: Knuth, Morris, Pratt 1977; a slice comparison per length is quadratic in 1 KB stops.
    """

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        self._borders = [0] * len(string)
        length = 0
        for index in range(1, len(string)):
            length = self._extend(length, string[index])
            self._borders[index] = length

    def advance(self, character: str) -> bool:
        """Take the next character; True when the string is complete."""
        self.matched = self._extend(self.matched, character)
        return self.matched == len(self.string)

    def _extend(self, length: int, character: str) -> int:
        while length and self.string[length] != character:
            length = self._borders[length - 1]
        return length + 1 if self.string[length] == character else 0
