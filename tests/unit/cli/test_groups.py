from __future__ import annotations

import re
from pathlib import Path

import pytest

from ellm import cli

from .conftest import Ellm

GROUPS = {
    "cache": ["ls", "show", "prune", "verify", "clear"],
    "sessions": ["list", "show", "fork", "delete"],
}
CLI = Path(cli.__file__).parent


def test_every_file_of_a_group_is_a_group() -> None:
    files = {path.stem for path in (CLI / "groups").glob("*.py")} - {"__init__"}
    app = (CLI / "app.py").read_text()
    assert files == set(re.findall(r'app\.add_typer\((\w+)\.app, name="\1"\)', app))
    assert files == set(GROUPS)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands_and_each_has_help(ellm: Ellm, group: str) -> None:
    alone = ellm(group)
    assert alone.status == 2
    listed = re.findall(r"^  (\w+)  ", alone.err.partition("Commands:")[2], re.MULTILINE)
    assert listed == GROUPS[group]
    for command in listed:
        done = ellm(group, command, "--help")
        assert (done.status, f"Usage: ellm {group} {command}" in done.out) == (0, True)


@pytest.mark.parametrize("group", GROUPS)
def test_a_misspelt_command_gets_the_nearest(ellm: Ellm, group: str) -> None:
    done = ellm(group, "shwo")
    assert done.status == 2
    assert "Did you mean 'show'" in done.err
