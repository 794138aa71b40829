from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest

from ellm.cli.documents import Packing, pack_documents
from ellm.errors import CapacityError, ConfigError


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def names(packing: Packing) -> list[str]:
    return [document.name for document in packing.documents]


def reasons(packing: Packing) -> dict[str, str]:
    return {item.name: item.reason for item in packing.skipped}


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_are_read_with_their_paths_sorted_and_once(inside: Path) -> None:
    write(inside, {"b.txt": "B", "notes/z.md": "Z", "notes/a/deep.py": "D"})
    packing = pack_documents(["notes", "b.txt", "./b.txt", str(inside / "b.txt"), "notes/z.md"])
    assert [(d.name, d.text) for d in packing.documents] == [
        ("b.txt", "B"),
        ("notes/a/deep.py", "D"),
        ("notes/z.md", "Z"),
    ]
    assert packing.skipped == []


def test_the_order_of_the_arguments_does_not_matter(inside: Path) -> None:
    write(inside, {"a": "1", "b": "2", "c/d": "3"})
    assert pack_documents(["c", "b", "a"]) == pack_documents(["a", "b", "c"])


def test_what_is_no_text_is_skipped_with_the_reason(inside: Path) -> None:
    write(
        inside,
        {
            "d/nul.bin": b"text\0text",
            "d/random.bin": bytes(range(1, 32)) * 20 + b"\xff\xfe\xfd",
            "d/empty.txt": "",
            "d/blank.txt": " \n\t\n",
            "d/utf16.txt": b"\xff\xfe\x00\xd8",
            "d/ok.txt": "fine",
        },
    )
    packing = pack_documents(["d"])
    assert names(packing) == ["d/ok.txt"]
    assert reasons(packing) == {
        "d/nul.bin": "binary",
        "d/random.bin": "binary",
        "d/empty.txt": "empty",
        "d/blank.txt": "empty",
        "d/utf16.txt": "not valid UTF-16, which its first bytes promise",
    }


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"\xef\xbb\xbfna\xc3\xafve\r\n", "naïve\n", None),
        ("naïve".encode("utf-16"), "naïve", "UTF-16"),
        (b"\xfe\xff" + "über".encode("utf-16-be"), "über", "UTF-16"),
        ("über".encode("utf-32"), "über", "UTF-32"),
        ("caf\xe9 \u201cquoted\u201d".encode("cp1252"), "café “quoted”", "Latin-1"),
        (b"caf\xe9 \x81", "café \x81", "Latin-1"),
        ("plain ünïcode".encode(), "plain ünïcode", None),
        (b"old\rmac\rlines", "old\nmac\nlines", None),
    ],
)
def test_encodings_are_recognised_and_reported(
    inside: Path, data: bytes, text: str, encoding: str | None
) -> None:
    write(inside, {"f.txt": data})
    (document,) = pack_documents(["f.txt"]).documents
    assert (document.text, document.encoding) == (text, encoding)


def test_a_file_that_is_too_large_is_skipped_by_name(inside: Path) -> None:
    write(inside, {"big.txt": "x" * 101, "fits.txt": "x" * 100})
    packing = pack_documents(["big.txt", "fits.txt"], max_file_bytes=100)
    assert names(packing) == ["fits.txt"]
    assert reasons(packing) == {"big.txt": "larger than 100 B"}
    assert packing.skipped[0].asked_for


def test_too_much_text_is_refused_with_both_numbers(inside: Path) -> None:
    write(inside, {f"d/{i}": "x" * 60 for i in range(3)})
    with pytest.raises(CapacityError, match="more than 100 B of text") as caught:
        pack_documents(["d"], max_total_bytes=100)
    assert (caught.value.needed, caught.value.available) == (120, 100)


def test_a_path_that_does_not_exist_is_named(inside: Path) -> None:
    write(inside, {"a": "1"})
    for wrong in ("absent.txt", "a/below", "nul\0byte", ""):
        if wrong == "":
            continue
        with pytest.raises(ConfigError, match="no such file or directory"):
            pack_documents(["a", wrong])


def test_hidden_and_ignored_entries_of_directories_are_skipped(inside: Path) -> None:
    write(
        inside,
        {
            "p/keep.py": "k",
            "p/.env": "secret",
            "p/.git/config": "c",
            "p/.venv/lib.py": "v",
            "p/node_modules/x.js": "x",
            "p/src/__pycache__/x.txt": "x",
        },
    )
    packing = pack_documents(["p"])
    assert names(packing) == ["p/keep.py"]
    assert reasons(packing) == {
        "p/.env": "hidden",
        "p/.git": "hidden",
        "p/.venv": "hidden",
        "p/node_modules": "ignored directory",
        "p/src/__pycache__": "ignored directory",
    }
    assert names(pack_documents(["p/.env", "p/node_modules"])) == [
        "p/.env",
        "p/node_modules/x.js",
    ]


def test_gitignore_decides_as_git_does(inside: Path) -> None:
    """The oracle is git itself."""
    write(
        inside,
        {
            "r/.gitignore": "*.log\n!keep.log\nbuild/\n/top.txt\ndocs/*.tmp\n# comment\n\nsp ace\n",
            "r/sub/.gitignore": "!wanted.log\n*.md\n",
            "r/a.log": "1",
            "r/keep.log": "1",
            "r/top.txt": "1",
            "r/sub/top.txt": "1",
            "r/sub/wanted.log": "1",
            "r/sub/b.log": "1",
            "r/sub/x.md": "1",
            "r/x.md": "1",
            "r/build/out.txt": "1",
            "r/sub/build/out.txt": "1",
            "r/docs/a.tmp": "1",
            "r/docs/b.txt": "1",
            "r/sp ace": "1",
        },
    )
    git = ["git", "-C", "r"]
    subprocess.run([*git, "init", "-q"], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard", "-z"],
        check=True,
        capture_output=True,
        text=True,
    )
    expected = sorted(f"r/{n}" for n in listed.stdout.split("\0") if n and "/.git" not in f"/{n}")
    assert names(pack_documents(["r"])) == expected
    # Inside the repository, the rules of the directories above count as well.
    assert names(pack_documents(["r/sub"])) == [n for n in expected if n.startswith("r/sub/")]


def test_links_never_loop_and_never_lead_out(inside: Path) -> None:
    write(inside, {"d/real.txt": "r", "out/secret.txt": "s"})
    (inside / "d" / "loop").symlink_to(inside / "d")
    (inside / "d" / "self").symlink_to("self")
    (inside / "d" / "broken").symlink_to("nowhere")
    (inside / "d" / "out").symlink_to(inside / "out" / "secret.txt")
    (inside / "d" / "same.txt").symlink_to("real.txt")
    packing = pack_documents(["d"])
    assert names(packing) == ["d/real.txt"]
    assert reasons(packing) == {
        "d/loop": "link to a directory",
        "d/self": "broken link",
        "d/broken": "broken link",
        "d/out": "link out of the directory",
    }
    (inside / "link").symlink_to("out")
    assert names(pack_documents(["link"])) == ["link/secret.txt"]


def test_pipes_in_directories_are_not_opened_but_named_ones_are(inside: Path) -> None:
    (inside / "d").mkdir()
    os.mkfifo(inside / "d" / "pipe")
    assert reasons(pack_documents(["d"])) == {"d/pipe": "not a regular file"}
    read_end, write_end = os.pipe()
    os.write(write_end, b"piped")
    os.close(write_end)
    (document,) = pack_documents([f"/dev/fd/{read_end}"]).documents
    os.close(read_end)
    assert document.text == "piped"


def test_an_endless_device_ends_at_the_limit() -> None:
    packing = pack_documents(["/dev/zero"], max_file_bytes=1000)
    assert reasons(packing) == {"/dev/zero": "larger than 1 kB"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_without_permission_are_named(inside: Path) -> None:
    write(inside, {"d/closed.txt": "c", "d/dir/x.txt": "x"})
    (inside / "d" / "closed.txt").chmod(0)
    (inside / "d" / "dir").chmod(0)
    try:
        assert reasons(pack_documents(["d"])) == {
            "d/closed.txt": "cannot be read: Permission denied",
            "d/dir": "cannot be read: Permission denied",
        }
    finally:
        (inside / "d" / "dir").chmod(0o755)


def test_a_read_error_is_named(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(inside, {"d/a.txt": "a", "d/b.txt": "b"})
    original = Path.open

    def failing(self: Path, *args: object, **kwargs: object) -> object:
        if self.name == "a.txt":
            raise PermissionError(13, "Permission denied")
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", failing)
    packing = pack_documents(["d"])
    assert names(packing) == ["d/b.txt"]
    assert reasons(packing) == {"d/a.txt": "cannot be read: Permission denied"}


def test_names_cannot_break_a_line_or_command_a_terminal(inside: Path) -> None:
    write(inside, {"d/a\n=== b ===.txt": "x", "d/\x1b[31m": "y"})
    (inside / "d" / os.fsdecode(b"\xff")).write_text("z")
    shown = names(pack_documents(["d"]))
    assert shown == sorted(["d/a\\n=== b ===.txt", "d/\\x1b[31m", "d/\\udcff"])
    assert all(name.isprintable() for name in shown)


def test_standard_input_is_a_document(inside: Path) -> None:
    write(inside, {"-": "a file of that name", "a": "A"})
    packing = pack_documents(["-", "a", "./-"], io.BytesIO(b"piped"))
    assert [(d.name, d.text) for d in packing.documents] == [
        ("-", "a file of that name"),
        ("a", "A"),
        ("standard input", "piped"),
    ]
