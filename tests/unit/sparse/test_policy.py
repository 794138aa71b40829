"""The rule of a row follows from the mode and the row's position, and from nothing else."""

from __future__ import annotations

import pytest

from ellm.config.attention import ATTENTION_MODES, BASELINE_MODES, EXACT, AttentionConfig
from ellm.program.executor import ChoiceRule, Estimate
from ellm.sparse.policy import BASELINE_TOKENS, DEFAULT_SPARSE_FROM_TOKENS, AttentionPolicy

DEEP = DEFAULT_SPARSE_FROM_TOKENS
POSITIONS = (0, 1, 63, 64, 5000, DEEP - 1, DEEP, 1_000_000)
ESTIMATES = {
    "bounded": Estimate.EXACT,
    "sparse": Estimate.SCAN,
    "auto": Estimate.SCAN,
    "block-mean": Estimate.MEAN,
}


def rule_at(position, mode, **options):
    return AttentionPolicy(AttentionConfig(mode=mode, **options)).rule_at(position)


def test_every_mode_but_exact_has_an_estimate():
    assert {*ESTIMATES, "exact"} == {*ATTENTION_MODES, *BASELINE_MODES}
    for mode, estimate in ESTIMATES.items():
        assert rule_at(DEEP, mode).estimate is estimate


def test_exact_rows_have_no_rule_whatever_else_is_asked_for():
    assert all(AttentionPolicy(EXACT).rule_at(position) is None for position in POSITIONS)
    assert all(rule_at(position, "exact", mass=0.1, tokens=64) is None for position in POSITIONS)


@pytest.mark.parametrize("mode", [mode for mode in ESTIMATES if mode != "auto"])
def test_all_positions_have_the_rule_that_was_asked_for(mode):
    expected = ChoiceRule(ESTIMATES[mode], mass=0.9, max_blocks=10)
    for position in POSITIONS:
        assert rule_at(position, mode, mass=0.9, tokens=640) == expected


def test_auto_reads_everything_up_to_its_depth_and_is_sparse_from_there_on():
    for position in POSITIONS:
        found = rule_at(position, "auto", mass=0.8, tokens=128)
        sparse = rule_at(position, "sparse", mass=0.8, tokens=128)
        assert found == (None if position < DEEP else sparse)


@pytest.mark.parametrize(("tokens", "blocks"), [(64, 1), (127, 1), (128, 2), (4096, 64)])
def test_blocks_never_hold_more_tokens_than_asked_for(tokens, blocks):
    assert rule_at(DEEP, "sparse", tokens=tokens).max_blocks == blocks


def test_only_the_baseline_has_a_limit_of_its_own():
    limits = {mode: rule_at(DEEP, mode).max_blocks for mode in ESTIMATES}
    assert limits == dict.fromkeys(ESTIMATES) | {"block-mean": BASELINE_TOKENS // 64}
    assert rule_at(DEEP, "block-mean", tokens=64).max_blocks == 1


@pytest.mark.parametrize("mode", ESTIMATES)
def test_rows_hold_nearly_all_attention_unless_told_otherwise(mode):
    assert rule_at(DEEP, mode).mass == 0.95
