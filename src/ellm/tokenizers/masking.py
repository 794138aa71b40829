"""Hides the text of messages from a template, so that what it writes itself can be told apart.

A template joins its own control tokens and the users' text to one string; afterwards nobody can say
whether an "<|im_end|>" in it was the template's. So each character of the messages is replaced, one
for one, by a character of Unicode's private planes that the template does not use. In what the
template makes of that, a control token can only be the template's own, and putting the characters
back gives the text with the positions unchanged.

Left as they are, so that templates work as usual:

- white space, quotes, backslashes and control characters: `trim` and `tojson` depend on them;
- the string constants of the template, wherever messages contain them, so that tests such as
  `content.startswith("<tool_response>")` and `content.split("</think>")` give what they gave.

A constant or character that could be part of a control token, or join with neighbours to form one,
is hidden all the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice

from ellm.errors import RequestError

# Private planes 15 and 16, without the last two code points of each, which are not characters.
_PRIVATE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_FORMATTING = frozenset('"\\') | {chr(code) for code in (*range(0x20), 0x7F)}


class ControlTokens:
    """What masking must know about a vocabulary's control tokens."""

    def __init__(self, pieces: Collection[str]) -> None:
        """Prepare the questions below for the texts `pieces`."""
        self._pieces = frozenset(pieces)
        self._characters = frozenset("".join(pieces))
        self._starts = frozenset(piece[:i] for piece in pieces for i in range(1, len(piece)))
        self._ends = frozenset(piece[i:] for piece in pieces for i in range(1, len(piece)))
        self._text = "\0".join(pieces)
        self._markers = frozenset(
            character
            for character in self._characters
            if not (character.isalnum() or character.isspace() or character == "_")
        )
        self._unmarked = [piece for piece in pieces if self._markers.isdisjoint(piece)]

    def has_marker(self, text: str) -> bool:
        """Whether `text` holds a sign such as "<" or "|" by which control tokens stand out.

        Text without any can only lend a control token the letters between the template's signs.
        """
        return not self._markers.isdisjoint(text) or any(p in text for p in self._unmarked)

    def uses(self, character: str) -> bool:
        """Whether a control token contains `character`."""
        return character in self._characters

    def touches(self, text: str) -> bool:
        """Whether `text` holds, is within, or could join into a control token."""
        return (
            text in self._text
            or any(text[-i:] in self._starts or text[:i] in self._ends for i in range(1, len(text)))
            or any(
                text[i:j] in self._pieces
                for i in range(len(text))
                for j in range(i + 1, len(text) + 1)
            )
        )


class Mask:
    """A one-for-one replacement of characters, made for one conversation."""

    def __init__(
        self,
        strings: Iterable[str],
        *,
        control: ControlTokens,
        template: str,
        literals: Sequence[str],
    ) -> None:
        """Choose the replacements.

        Args:
            strings: All strings to be hidden.
            control: The control tokens of the vocabulary.
            template: Source of the template, whose characters are not used as replacements.
            literals: String constants of the template, longest first.

        Raises:
            RequestError: There are more different characters than private ones.
        """
        used = frozenset(template)
        hidden = sorted(
            character
            for character in frozenset().union(*strings)
            if control.uses(character) or not (character.isspace() or character in _FORMATTING)
        )
        free = (c for c in map(chr, chain(*_PRIVATE)) if c not in used)
        replacements = list(islice(free, len(hidden)))
        if len(replacements) < len(hidden):
            raise RequestError(
                f"the messages hold {len(hidden)} different characters; "
                f"at most {len(replacements)} can be told apart"
            )
        self._hide = str.maketrans(dict(zip(hidden, replacements, strict=True)))
        self._show = str.maketrans(dict(zip(replacements, hidden, strict=True)))
        kept = [literal for literal in literals if not control.touches(literal)]
        self._kept = re.compile("|".join(map(re.escape, kept))) if kept else None

    def hide(self, text: str) -> str:
        """Return `text` masked; its length stays."""
        if self._kept is None:
            return text.translate(self._hide)
        parts = []
        position = 0
        for match in self._kept.finditer(text):
            parts += [text[position : match.start()].translate(self._hide), match[0]]
            position = match.end()
        return "".join((*parts, text[position:].translate(self._hide)))

    def show(self, text: str) -> str:
        """Return `text` with all masked characters put back; its length stays."""
        return text.translate(self._show)
