from __future__ import annotations

from pathlib import Path

import pytest

from ellm.errors import ModelNotFoundError
from ellm.hub.reference import HubReference, parse_reference
from ellm.hub.registry import REGISTRY, find_entry


def test_none_and_default_are_smollm2() -> None:
    assert parse_reference(None) is REGISTRY["smollm2-135m"]
    assert parse_reference("default") is REGISTRY["smollm2-135m"]


def test_registry_names_ignore_case() -> None:
    assert find_entry("Qwen2.5-Coder-1.5B") is REGISTRY["qwen2.5-coder-1.5b"]


@pytest.mark.parametrize(
    "text", ["m.gguf", "dir/m.gguf", "./default", "../x", "/abs/anything", "~/m", ".", "M.GGUF"]
)
def test_paths_are_paths_even_when_nothing_is_there(text: str) -> None:
    assert parse_reference(text) == Path(text).expanduser()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/repo", HubReference("org/repo")),
        ("hf://org/repo", HubReference("org/repo")),
        ("org/repo:Q4_K_M", HubReference("org/repo", quant="Q4_K_M")),
        ("org/repo:iq2_xs", HubReference("org/repo", quant="iq2_xs")),
        ("org/repo/m-Q8_0.gguf", HubReference("org/repo", filename="m-Q8_0.gguf")),
        ("hf://org/repo/sub/m.gguf", HubReference("org/repo", filename="sub/m.gguf")),
        ("hf://org/repo.gguf", HubReference("org/repo.gguf")),
    ],
)
def test_hugging_face_references(text: str, expected: HubReference) -> None:
    assert parse_reference(text) == expected


def test_an_existing_directory_wins_over_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "repo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_reference("org/repo") == Path("org/repo")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "a\0b",
        "org/",
        "hf://",
        "hf://onlyorg",
        "o/r:",
        "o/r:Q4/x",
        "o/r/readme.md",
        "o/r/../m.gguf",
        "o/r/a.gguf:Q4",
        "../..//x:y/.",
        "o/.hidden",
        "o r/x",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    if text.startswith(".."):
        assert isinstance(parse_reference(text), Path)
        return
    with pytest.raises(ModelNotFoundError):
        parse_reference(text)


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(ModelNotFoundError, match=r"did you mean 'smollm2-135m'.*gemma3-270m"):
        parse_reference("smolm2-135m")


def test_a_name_like_nothing_gets_the_list_only() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        parse_reference("zzzzz")
    assert "did you mean" not in str(caught.value)
    assert "qwen2.5-coder-0.5b" in str(caught.value)


def test_the_registry_agrees_with_the_known_checksums() -> None:
    for name, entry in REGISTRY.items():
        assert entry.name == name
        assert len(bytes.fromhex(entry.sha256)) == 32
        assert entry.size_bytes > 10_000_000
        assert all("==" in wheel for wheel in entry.wheels)
