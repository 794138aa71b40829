import numpy as np
import pytest

from ellm.engine.prompts import check_fits, encode_prompt, is_single, token_ids
from ellm.errors import CapacityError, RequestError

BOS = 1


class Encoder:
    """Encodes "<s>" to BOS when special text is parsed, any other character to its code."""

    bos_id = BOS

    def __init__(self, *, add_bos):
        self.add_bos = add_bos

    def encode(self, text, *, parse_special=False, add_bos=False):
        head = [BOS] if add_bos else []
        while parse_special and text.startswith("<s>"):
            head, text = [*head, BOS], text[3:]
        return head + [ord(character) for character in text]


def test_text_gets_the_bos_of_the_model_once():
    with_bos, without = Encoder(add_bos=True), Encoder(add_bos=False)
    assert encode_prompt("a", with_bos, 200) == [BOS, 97]
    assert encode_prompt("<s>a", with_bos, 200) == [BOS, 97]
    assert encode_prompt("a", without, 200) == [97]
    assert encode_prompt("<s>a", without, 200) == [BOS, 97]
    assert encode_prompt("<s><s>a", without, 200) == [BOS, BOS, 97]


def test_token_ids_are_taken_as_they_are():
    encoder = Encoder(add_bos=True)
    for ids in ([5, 6], (5, 6), np.array([5, 6]), np.array([5, 6], dtype=np.uint8)):
        tokens = encode_prompt(ids, encoder, 7)
        assert tokens == [5, 6]
        assert {type(token) for token in tokens} == {int}


@pytest.mark.parametrize("prompt", ["", [], (), np.array([], dtype=np.int32)])
def test_empty_prompt_is_refused(prompt):
    with pytest.raises(RequestError, match="empty"):
        encode_prompt(prompt, Encoder(add_bos=False), 200)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 200], r"token id 200 is outside the model's 0\.\.199"),
        ([-1], "token id -1 is outside"),
        ([2**63], "outside"),
        ([1.0], "is a float, expected int"),
        ([True], "is a bool, expected int"),
        (["5"], "is a str, expected int"),
        ([None], "is a NoneType"),
        (np.array([1.5]), "is a float"),
        (np.zeros((2, 2), dtype=np.int32), "expected a sequence"),
        ({5}, "are a set"),
        (b"abc", "are a bytes"),
        (None, "are a NoneType"),
    ],
)
def test_anything_but_token_ids_of_the_model_is_refused(ids, message):
    with pytest.raises(RequestError, match=message):
        token_ids(ids, 200)


@pytest.mark.parametrize("prompt", ["text", "", [1, 2], (1,), np.array([1])])
def test_one_prompt_is_told(prompt):
    assert is_single(prompt)


@pytest.mark.parametrize("prompt", [["a"], ["a", [1]], [[1, 2]], ([1],), [np.array([1])]])
def test_list_of_prompts_is_told(prompt):
    assert not is_single(prompt)


@pytest.mark.parametrize("prompt", [None, 5, b"bytes", {"a": 1}, [], ()])
def test_what_is_no_prompt_is_refused(prompt):
    with pytest.raises(RequestError):
        is_single(prompt)


def test_context_too_small_names_both_numbers():
    check_fits(99, 100, answer_tokens=1)
    check_fits(100, 100, answer_tokens=0)
    with pytest.raises(CapacityError, match="100 tokens, the context 100 and leaves no room"):
        check_fits(100, 100, answer_tokens=1)
    with pytest.raises(CapacityError, match="101 tokens, the context 100;") as caught:
        check_fits(101, 100, answer_tokens=0)
    assert (caught.value.needed, caught.value.available) == (101, 100)
