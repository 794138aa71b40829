"""The files of this repository, as the tests of its laws see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
PYTHON_FOLDERS = ("src", "tests", "benchmarks", "examples", "docs")

_INCLUDE = re.compile(r'^\s*#\s*include\s*(?P<open>[<"])(?P<name>[^>"]+)[>"]', re.MULTILINE)


def python_files(*folders: str) -> list[Path]:
    """Return every Python file of these folders, of all by default."""
    return [
        path
        for folder in folders or PYTHON_FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def native_files(pattern: str = "**/*") -> list[Path]:
    """Return the C++ files of `native/` that fit."""
    return [path for path in sorted(NATIVE.glob(pattern)) if path.suffix in {".cc", ".h"}]


def shown(path: Path) -> str:
    """Return the path as the repository names it."""
    return path.relative_to(ROOT).as_posix()


def without_comments(text: str) -> str:
    """Return C++ text with its comments blanked."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def own_includes(path: Path) -> list[str]:
    """Return the quoted includes of a C++ file, relative to `native/`."""
    return [match["name"] for match in _includes(path) if match["open"] == '"']


def system_includes(path: Path) -> list[str]:
    """Return the headers that a C++ file includes from outside."""
    return [match["name"] for match in _includes(path) if match["open"] == "<"]


def included_with(path: Path) -> set[Path]:
    """Return the file and everything of `native/` that it includes, directly or not."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current in found or not current.exists():  # a header that CMake writes
            continue
        found.add(current)
        waiting += [NATIVE / name for name in own_includes(current)]
    return found


def _includes(path: Path) -> Iterator[re.Match[str]]:
    return _INCLUDE.finditer(path.read_text(encoding="utf-8"))
