"""Code for an instruction set stays in the files that are named after it.

An inline function of a shared header that is compiled in an AVX-512 file becomes a weak symbol, of
which the linker keeps one copy, perhaps that one: then a CPU without AVX-512 dies in code that has
nothing to do with it (pytorch/FBGEMM #46, numpy #25274). So an ISA file defines no weak symbol.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.architecture.repository import (
    NATIVE,
    ROOT,
    included_with,
    native_files,
    shown,
    system_includes,
    without_comments,
)

COMPILERS_AT_A_TIME = 2
PLAIN_HEADERS = {"cstddef", "cstdint", "cstring"}
INTRINSICS_HEADERS = {"immintrin.h", "arm_neon.h"}
INTRINSIC = re.compile(
    r"\b(?:_mm\d*_\w+|__m(?:64|128|256|512)[a-z]*|__mmask\d+|__builtin_ia32_\w+|v\w+q_[fsu]\d+)\b"
    r"|<(?:immintrin|arm_neon|x86intrin|xmmintrin)\.h>"
)
# The hint of a spinning thread to its core is no computation.
PAUSE = {"native/threading/thread_pool.cc": {"__builtin_ia32_pause"}}


def isa_flags() -> dict[str, list[str]]:
    """Return the compiler flags of each ISA but scalar, as CMakeLists.txt has them."""
    text = (ROOT / "CMakeLists.txt").read_text()
    found = re.findall(r"set\(ELLM_ISA_FLAGS_(\w+)\s+([^)]*)\)", text)
    return {isa: re.sub(r"#.*", "", flags).split() for isa, flags in found}


ISAS = isa_flags()


def isa_of(path: Path) -> str | None:
    """Return the ISA that a file is named after, if any."""
    last = path.stem.rpartition("_")[2]
    return last if last in ISAS else None


SOURCES = [path for path in native_files("kernels/**/*.cc") if isa_of(path)]


def test_there_are_files_for_each_isa() -> None:
    assert {isa_of(path) for path in SOURCES} == set(ISAS)


def test_isa_files_include_only_intrinsics_and_plain_headers() -> None:
    found = []
    for path in SOURCES:
        for part in included_with(path):
            outside = set(system_includes(part)) - PLAIN_HEADERS - INTRINSICS_HEADERS
            own = part.relative_to(NATIVE).parts[0] in {"kernels", "base"}
            if outside or not own or isa_of(part) not in {isa_of(path), None}:
                found.append(f"{shown(path)} takes in {shown(part)} {outside or ''}")
    assert found == []


def test_intrinsics_stand_only_in_files_named_after_an_isa() -> None:
    found = {}
    for path in native_files():
        if path.is_relative_to(NATIVE / "kernels") and isa_of(path):
            continue
        names = set(INTRINSIC.findall(without_comments(path.read_text(encoding="utf-8"))))
        if names - PAUSE.get(shown(path), set()):
            found[shown(path)] = names
    assert found == {}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
def test_isa_files_define_no_weak_symbol(tmp_path: Path) -> None:
    def weak_symbols(path: Path) -> list[str]:
        target = tmp_path / (shown(path).replace("/", "-") + ".o")
        # At -O2 an inline function is usually inlined and the test would see nothing.
        flags = ["-std=c++20", "-O0", "-w", f"-I{NATIVE}", *ISAS[isa_of(path) or ""]]
        compiler = os.environ.get("CXX", "g++")
        subprocess.run([compiler, *flags, "-c", str(path), "-o", str(target)], check=True)
        listing = subprocess.run(["nm", "-C", target], capture_output=True, text=True, check=True)
        lines = [line.split(maxsplit=2) for line in listing.stdout.splitlines()]
        return [f"{shown(path)}: {line[2]}" for line in lines if line[1] in {"W", "V", "u"}]

    with ThreadPoolExecutor(COMPILERS_AT_A_TIME) as pool:
        found = list(pool.map(weak_symbols, SOURCES))
    assert [symbol for symbols in found for symbol in symbols] == []
