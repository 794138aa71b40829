import logging
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm.engine.context import KEPT_FREE_SHARE, choose_context
from ellm.errors import CapacityError, ConfigError

WEIGHTS, ARENA, BLOCK = 1_000_000, 50_000, 7_000


@dataclass(frozen=True)
class Plan:
    kv_bytes: int
    weights_bytes: int = WEIGHTS
    arena_bytes: int = ARENA

    @property
    def total_bytes(self):
        return self.weights_bytes + self.arena_bytes + self.kv_bytes


def chosen(asked, *, available, context_length=8192, kv_type="int8"):
    return choose_context(
        asked,
        context_length=context_length,
        available_bytes=available,
        kv_type=kv_type,
        plan=lambda num_blocks: Plan(num_blocks * BLOCK),
    )


def test_context_that_fits_is_given_as_asked_or_as_the_model_has_it():
    assert chosen(1000, available=10**9) == 1000
    assert chosen(None, available=10**9) == 8192
    assert chosen(8192, available=10**9) == 8192


def test_more_than_the_models_context_is_refused():
    with pytest.raises(ConfigError, match="context_tokens is 8193; allowed is at most 8192"):
        chosen(8193, available=10**9)


def test_context_that_does_not_fit_is_refused_with_bytes_needed_and_there():
    needed = WEIGHTS + ARENA + 16 * BLOCK
    assert chosen(1000, available=needed) == 1000
    with pytest.raises(CapacityError) as caught:
        chosen(1000, available=needed - 1)
    assert (caught.value.needed, caught.value.available) == (needed, needed - 1)
    message = str(caught.value)
    assert str(needed) in message
    assert str(needed - 1) in message
    for shown in ("1.16 MB", "weights 1 MB", "KV of 1000 tokens 112 kB", "working memory 50 kB"):
        assert shown in message


@settings(deadline=None)
@given(available=st.integers(0, 4_000_000), context_length=st.integers(2, 20_000))
def test_default_context_is_the_most_that_fits(available, context_length):
    budget = int(available * (1 - KEPT_FREE_SHARE))
    least = min(512, context_length)

    def total(tokens):
        return WEIGHTS + ARENA + -(-tokens // 64) * BLOCK

    if total(least) > available:
        with pytest.raises(CapacityError):
            chosen(None, available=available, context_length=context_length)
        return
    tokens = chosen(None, available=available, context_length=context_length)
    assert least <= tokens <= context_length
    assert total(tokens) <= max(budget, total(least))
    assert tokens == context_length or total(tokens + 1) > budget


@pytest.mark.parametrize("kv_type", ["int8", "f16"])
def test_lowered_context_is_told(caplog, kv_type):
    with caplog.at_level(logging.WARNING):
        tokens = chosen(None, available=1_500_000, kv_type=kv_type)
    assert f"context lowered from 8192 to {tokens} tokens: 1.5 MB of memory" in caplog.text
    assert ("kv_type='int8'" in caplog.text) == (kv_type != "int8")


@pytest.mark.parametrize("kv_type", ["int8", "f32"])
def test_int8_is_advised_where_it_would_help(kv_type):
    with pytest.raises(CapacityError) as caught:
        chosen(1000, available=1000, kv_type=kv_type)
    assert ("kv_type='int8'" in str(caught.value)) == (kv_type != "int8")
