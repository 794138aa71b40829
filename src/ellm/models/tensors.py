"""Looks up a model's tensors by name and checks their shapes while a program is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ellm.errors import InvalidModelError, UnsupportedError
from ellm.program.ops import LinearPart

# No op reads these: the first comes with the configuration, the others (of old converters) hold
# the plain frequencies that the configuration's base gives.
_READ_ELSEWHERE = frozenset({"rope_freqs.weight"})
_READ_ELSEWHERE_SUFFIXES = (".attn_rot_embd.weight", ".attn_rot_embd")


class HasShape(Protocol):
    """A tensor's description; the shape is in NumPy order."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, rows first."""


class ModelTensors:
    """The tensors of a file; every name handed out exists with the shape asked for."""

    def __init__(self, tensors: Mapping[str, HasShape], *, path: str = "") -> None:
        """Wrap `tensors`; `path` is only named in errors."""
        self._tensors = tensors
        self._path = path
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether the file has this tensor."""
        return name in self._tensors

    def tensor(self, name: str, *shape: int) -> str:
        """Return `name` if the file has it in this shape.

        Raises:
            InvalidModelError: It is missing or has another shape.
        """
        expected = f"shape {shape}"
        if name not in self._tensors:
            raise InvalidModelError(
                f"tensor {name}", path=self._path, found="no such tensor", expected=expected
            )
        found = tuple(self._tensors[name].shape)
        if found != shape:
            raise InvalidModelError(
                f"tensor {name}", path=self._path, found=f"shape {found}", expected=expected
            )
        self._used.add(name)
        return name

    def linear(self, name: str, rows: int, cols: int, *, needs_bias: bool = False) -> LinearPart:
        """Return the matrix `name`.weight (rows, cols) with `name`.bias (rows,) if there is one."""
        weight = self.tensor(f"{name}.weight", rows, cols)
        bias = f"{name}.bias"
        if not needs_bias and bias not in self:
            return LinearPart(weight)
        return LinearPart(weight, self.tensor(bias, rows))

    def output(self, rows: int, cols: int) -> str:
        """Return the output matrix: the embedding where the file has none of its own."""
        own = "output.weight"
        return self.tensor(own if own in self else "token_embd.weight", rows, cols)

    def check_all_used(self) -> None:
        """Refuse a file with tensors that no op reads: leaving them out would change results.

        Raises:
            UnsupportedError: Names the first few of them.
        """
        left = sorted(name for name in self._tensors if self._is_left_out(name))
        if left:
            where = self._path or "model data"
            raise UnsupportedError(
                f"{where}: {_listing(left)} would be ignored; this variant of the architecture "
                "is not implemented"
            )

    def _is_left_out(self, name: str) -> bool:
        return not (
            name in self._used or name in _READ_ELSEWHERE or name.endswith(_READ_ELSEWHERE_SUFFIXES)
        )


def _listing(names: Iterable[str], limit: int = 3) -> str:
    shown = list(names)
    more = len(shown) - limit
    return f"tensor {', '.join(shown[:limit])}" + (f" and {more} more" if more > 0 else "")
