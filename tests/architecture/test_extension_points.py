"""Weight formats, architectures and commands are complete: each in every place it belongs to."""

from __future__ import annotations

import ast
import re

import pytest

from ellm import native
from ellm.formats.quantization import FORMATS
from ellm.models import ARCHITECTURES
from tests.architecture.repository import NATIVE, ROOT, shown

PACKAGE = ROOT / "src" / "ellm"
KERNELS = NATIVE / "kernels"
NATIVE_FORMATS = {entry["name"]: entry for entry in native.weight_formats()}


def reader_formats() -> dict[str, tuple[int, int, int]]:
    """Return what the GGUF reader accepts: ggml type, weights and bytes of a block by name."""
    text = (NATIVE / "gguf" / "weight_format.cc").read_text()
    table = text[text.index("kWeightFormats[]") : text.index("kUnsupported[]")]
    rows = re.findall(r'\{(\d+), "(\w+)", (\d+), (\d+)\}', table)
    return {name: (int(number), int(weights), int(size)) for number, name, weights, size in rows}


def test_reader_kernels_and_decoders_know_the_same_formats() -> None:
    assert set(FORMATS) == set(NATIVE_FORMATS) == set(reader_formats())


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_the_same_everywhere(name: str) -> None:
    decoder, kernel = FORMATS[name], NATIVE_FORMATS[name]
    assert decoder.name == kernel["name"] == name
    layout = (decoder.ggml_type, decoder.block_weights, decoder.block_bytes)
    assert layout == (kernel["ggml_type"], kernel["block_weights"], kernel["block_bytes"])
    assert layout == reader_formats()[name]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_a_scalar_kernel_and_a_decoder_of_its_name(name: str) -> None:
    scalar = KERNELS / name / "scalar.cc"
    assert scalar.read_text().startswith(f"// {name.upper()}")
    decoder = PACKAGE / "formats" / "quantization" / f"{name}.py"
    assert (ast.get_docstring(ast.parse(decoder.read_text())) or "").startswith(name.upper())
    assert FORMATS[name].source


def test_every_kernel_folder_with_a_scalar_file_is_a_format() -> None:
    assert {path.parent.name for path in KERNELS.glob("*/scalar.cc")} == set(FORMATS)


def test_a_fast_kernel_has_its_scalar_twin() -> None:
    sources = KERNELS.glob("*/*.cc")
    assert [shown(p) for p in sources if not (p.parent / "scalar.cc").is_file()] == []


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_a_file_of_its_name_with_its_source(name: str) -> None:
    path = PACKAGE / "models" / f"{name}.py"
    record = ARCHITECTURES[name]
    assert record.__module__ == f"ellm.models.{name}"
    assert record.__name__ == f"record_{name}"
    assert "Source: " in (record.__doc__ or "")
    others = {f"ellm.models.{other}" for other in ARCHITECTURES}
    imported = {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    assert others.isdisjoint(imported)


def test_every_command_file_is_a_command() -> None:
    files = {path.stem for path in (PACKAGE / "cli" / "commands").glob("*.py")} - {"__init__"}
    registered = re.findall(
        r'app\.command\("\w+"\)\((\w+)\.\w+\)', (PACKAGE / "cli" / "app.py").read_text()
    )
    assert set(registered) == files
