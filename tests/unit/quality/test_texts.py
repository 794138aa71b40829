"""The texts that need no file of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ellm.quality import texts


def test_python_sources_are_code_in_the_order_of_names() -> None:
    text = texts.python_sources()
    assert text is not None
    assert len(text.content) <= texts.MAX_CODE_CHARACTERS + 1_000_000
    assert text.content.count("\ndef ") > 100
    assert text == texts.python_sources()


def test_licences_come_in_an_order_of_their_own_and_absent_ones_are_left_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "GPL-1").write_text("first version")
    (tmp_path / "Artistic").write_text("art")
    (tmp_path / "GPL-2").symlink_to(tmp_path / "nowhere")
    (tmp_path / "README").write_text("no licence")
    text = texts.licences(tmp_path)
    assert text is not None
    assert text.content == "art\n\nfirst version"
    assert texts.licences(tmp_path / "absent") is None


def test_noise_stands_in_for_licences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "licences", lambda: None)
    prose, code = texts.default_haystacks()
    assert (prose.name, code.name) == ("noise", "code")
    lines = prose.content.splitlines()
    assert len(lines) == texts.NOISE_SENTENCES
    assert len(set(lines)) > 0.9 * len(lines)
    assert texts.noise() == prose


def test_prose_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "python_sources", lambda: None)
    assert len(texts.default_haystacks()) == 1
