"""Native code includes one way:  bindings > executor > ops > dispatch > kernels > base."""

from __future__ import annotations

from tests.architecture.repository import NATIVE, native_files, own_includes, shown

# What each folder may include besides itself.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "kernels": {"base"},
    "gguf": {"base"},
    "text": {"base"},
    "threading": {"base"},
    "platform": {"base", "threading"},
    "dispatch": {"base", "kernels"},
    "kv": {"base", "kernels", "platform"},
    "ops": {"base", "kernels", "dispatch", "platform", "threading", "kv"},
    "executor": {"base", "kernels", "dispatch", "platform", "threading", "kv", "ops"},
    "bindings": {
        *("base", "kernels", "dispatch", "platform", "threading", "kv", "ops", "executor"),
        *("gguf", "text"),
    },
    "fuzz": {"base", "gguf"},
}

WRITTEN_BY_CMAKE = {"dispatch/registry.inc"}


def test_every_folder_has_its_place() -> None:
    assert {path.name for path in NATIVE.iterdir() if path.is_dir()} == set(ALLOWED)


def test_the_table_has_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {name for name, lower in ALLOWED.items() if name not in done and lower <= done}
        assert ready, f"these folders may include each other: {set(ALLOWED) - done}"
        done |= ready


def test_a_file_includes_only_from_below() -> None:
    found = []
    for path in native_files():
        own = path.relative_to(NATIVE).parts[0]
        for name in own_includes(path):
            if name.split("/")[0] not in ALLOWED[own] | {own}:
                found.append(f'{shown(path)} includes "{name}"')
    assert found == []


def test_an_include_is_written_from_native_on() -> None:
    names = {name for path in native_files() for name in own_includes(path)}
    assert [n for n in names - WRITTEN_BY_CMAKE if not (NATIVE / n).is_file()] == []


def test_a_source_includes_its_own_header_first() -> None:
    """So that no header lives on what another one happened to include."""
    found = [
        shown(path)
        for path in native_files("**/*.cc")
        if (header := path.with_suffix(".h")).exists()
        and own_includes(path)[0] != header.relative_to(NATIVE).as_posix()
    ]
    assert found == []
