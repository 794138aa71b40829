"""No file and no function grows beyond what can be read at once."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.repository import native_files, python_files, shown

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

# Each with the size that it may not pass. Entries may shrink and leave; none may come.
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {
    # One list of hostile files each, in the order of the format's fields.
    "tests/malformed/hostile_files.py:_wrong_keys": 62,
    "tests/malformed/hostile_headers.py:_arrays": 61,
    "tests/malformed/hostile_tensors.py:_dimensions": 65,
    "tests/malformed/hostile_tensors.py:_offsets": 88,
}

FILES = [*python_files(), *native_files()]


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def beyond(sizes: dict[str, int], exempt: dict[str, int], limit: int) -> dict[str, int]:
    """Return what is over its limit, and exemptions that nothing needs any more."""
    over = {name: n for name, n in sizes.items() if n > exempt.get(name, limit)}
    idle = {name: sizes.get(name, 0) for name in exempt if sizes.get(name, 0) <= limit}
    return over | idle


def functions_of(path: Path) -> dict[str, int]:
    """Return the lines of each function, by file and name."""
    return {
        f"{shown(path)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_a_file_can_be_read_at_once() -> None:
    sizes = {shown(path): lines_of(path) for path in FILES}
    assert beyond(sizes, LONG_FILES, MAX_FILE_LINES) == {}


def test_a_function_can_be_read_at_once() -> None:
    sizes = {name: n for path in python_files() for name, n in functions_of(path).items()}
    assert beyond(sizes, LONG_FUNCTIONS, MAX_FUNCTION_LINES) == {}


def test_no_file_is_named_for_anything_and_everything() -> None:
    names = {"utils", "util", "common", "helpers", "misc"}
    assert [shown(path) for path in FILES if path.stem in names or path.parent.name in names] == []
