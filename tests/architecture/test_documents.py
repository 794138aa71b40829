"""What the documents name exists, and is described as it is."""

from __future__ import annotations

import re
import runpy

import pytest

from ellm import errors
from ellm.cli.main import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from ellm.quality.tasks.registry import TASKS
from tests.architecture.repository import ROOT

NAMES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/attention.md",
    "docs/caching.md",
    "docs/calibration.md",
    "docs/chains.md",
    "docs/chat.md",
    "docs/cli.md",
    "docs/performance.md",
    "docs/quality.md",
)
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}
# The recipes of CONTRIBUTING.md write these.
EXAMPLES = re.compile(r"models/qwen3\.py|/x\.py|kernels/x/|neon|commands/convert\.py")


def test_the_command_line_is_described_as_it_is() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_cli.py"))["page"]()
    assert page == PAGES["docs/cli.md"], "run: make fix"


def test_every_exit_status_is_described() -> None:
    statuses = {kind.exit_code for kind in vars(errors).values() if hasattr(kind, "exit_code")}
    listed = re.findall(r"^\| (\d+) \|", PAGES["docs/cli.md"], re.MULTILINE)
    assert {int(status) for status in listed} == statuses | {0, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE}


def test_every_task_is_described() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \| (.*) \| (yes|no) \|$", PAGES["docs/quality.md"], re.MULTILINE
    )
    assert [(name, summary, place == "yes") for name, summary, place in rows] == [
        (task.name, task.summary, task.has_position) for task in TASKS.values()
    ]


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    named = {
        word for page in PAGES.values() for word in re.findall(r"(?:`| {4})make ([a-z-]+)", page)
    }
    assert {"demo", "test", "check"} <= named
    assert named <= targets


def test_every_ellm_command_that_is_named_exists() -> None:
    commands = set(re.findall(r"^## ellm (\w+)$", PAGES["docs/cli.md"], re.MULTILINE))
    pattern = re.compile(r"(?:`|^ {4}|/)ellm ([a-z]+)\b", re.MULTILINE)
    named = {word for page in PAGES.values() for word in pattern.findall(page)}
    assert {"ask", "run"} <= named
    assert named <= commands


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_is_named_exists(name: str) -> None:
    quoted = re.findall(r"`([\w.]+/[\w./{},-]*|[\w-]+\.(?:py|md|txt|toml))`", PAGES[name])
    linked = re.findall(r"\]\(([^)#:]+)\)", PAGES[name])
    folders = (ROOT, (ROOT / name).parent, ROOT / "src" / "ellm")
    missing = [
        path
        for path in (*quoted, *linked)
        if not EXAMPLES.search(path)
        and not path.startswith("org/repo")
        and not all(any((f / part).exists() for f in folders) for part in braces(path))
    ]
    assert missing == []


def braces(path: str) -> list[str]:
    """Return the paths that `a{b,c}` stands for."""
    match = re.search(r"\{([^}]*)\}", path)
    if match is None:
        return [path]
    return [path.replace(match[0], choice) for choice in match[1].split(",")]
