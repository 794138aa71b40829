"""Imports run one way, and one module is the door to the compiled core."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.repository import ROOT, python_files, shown

CORE = "_core"


def test_imports_follow_the_layers_of_pyproject() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
    ]
    done = subprocess.run(
        [*command, "--no-cache", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_every_package_is_in_a_layer_and_none_may_be_left_out() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = settings["contracts"]
    assert contract["exhaustive"] is True
    assert "exhaustive_ignores" not in contract
    assert "ignore_imports" not in contract
    layers = {name.strip() for line in contract["layers"] for name in line.split("|")}
    package = ROOT / "src" / "ellm"
    parts = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert layers == parts - {"__init__", "__pycache__"}


def test_every_folder_of_the_package_is_a_package() -> None:
    """Import-linter and wheels look over a folder without `__init__.py`."""
    folders = {path.parent for path in python_files("src")} - {ROOT / "src"}
    assert [shown(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_only_the_door_imports_the_compiled_core() -> None:
    found = {shown(path) for path in python_files() if core_references(path)}
    assert found == {"src/ellm/native.py", shown(Path(__file__))}


def core_references(path: Path) -> list[int]:
    """Return the lines that import `ellm._core`, by statement or by name."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names) if any(CORE in name.name.split(".") for name in names):
                lines.append(node.lineno)
            case ast.ImportFrom(module=module, names=names) if CORE in (module or "").split(
                "."
            ) or (module == "ellm" and any(name.name == CORE for name in names)):
                lines.append(node.lineno)
            case ast.Constant(value=str(text)) if text == "ellm._core":
                lines.append(node.lineno)
    return lines
