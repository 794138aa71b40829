"""Masks hide text from a template, keep its shape, and leave no way to form a control token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ellm.tokenizers.masking import ControlTokens, Mask

PIECES = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]"]
CONTROL = ControlTokens(PIECES)
LITERALS = ["<tool_response>", "</think>", "<|im_start|>", "user", "im_e", "/s", "|", "xyz"]

fragments = st.sampled_from([*PIECES, *LITERALS, "<|", "|>", "im_end", "<", ">", "[", "\n", " "])
texts = st.lists(fragments | st.text(max_size=4), max_size=8).map("".join)


def mask_for(*strings: str, template: str = "") -> Mask:
    return Mask(strings, control=CONTROL, template=template, literals=LITERALS)


@given(text=texts)
def test_show_undoes_hide_and_lengths_stay(text: str) -> None:
    mask = mask_for(text)
    hidden = mask.hide(text)
    assert len(hidden) == len(text)
    assert mask.show(hidden) == text


@given(before=texts, text=texts, after=texts)
def test_hidden_text_completes_no_control_token(before: str, text: str, after: str) -> None:
    hidden = mask_for(text).hide(text)
    joined = before + hidden + after
    start, end = len(before), len(before) + len(hidden)
    for piece in PIECES:
        position = joined.find(piece)
        while position >= 0:
            assert position + len(piece) <= start or position >= end
            position = joined.find(piece, position + 1)


@given(text=texts)
def test_what_templates_look_at_stays(text: str) -> None:
    text = f' \n{text}"\\</think>\t'
    hidden = mask_for(text).hide(text)
    assert len(hidden.strip()) == len(text.strip())
    assert hidden.count('"') == text.count('"')
    assert ("</think>" in hidden) == ("</think>" in text)


def test_constants_that_could_join_to_a_control_token_are_hidden() -> None:
    assert CONTROL.touches("im_e")  # within one
    assert CONTROL.touches("a<|")  # starts one
    assert CONTROL.touches("|>b")  # ends one
    assert CONTROL.touches("a<s>b")  # holds one
    assert not CONTROL.touches("</think")
    assert not CONTROL.touches("<tool_response")


def test_private_characters_of_the_template_are_not_used() -> None:
    template = chr(0xF0000) + chr(0xF0001)
    hidden = mask_for("ab", template=template).hide("ab")
    assert not set(hidden) & set(template)


def test_private_characters_in_messages_are_hidden_too() -> None:
    text = chr(0xF0000) + "a" + chr(0xF0001)
    mask = mask_for(text)
    assert mask.show(mask.hide(text)) == text


def test_markers_are_the_signs_of_control_tokens() -> None:
    assert CONTROL.has_marker("a < b")
    assert CONTROL.has_marker("x]")
    assert not CONTROL.has_marker("plain words, (and) more_words; 'quotes'")
    assert ControlTokens(["INST"]).has_marker("an INST here")
    assert not ControlTokens(["INST"]).has_marker("an INS here")
