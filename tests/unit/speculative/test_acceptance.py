"""Chances and trust move with what was seen."""

from ellm.speculative.acceptance import Chance, Trust


def test_a_chance_moves_from_its_prior_to_what_is_seen():
    chance = Chance(0.9)
    for _ in range(200):
        chance.learn(right=False)
    assert chance.mean < 0.01
    for _ in range(30):
        chance.learn(right=True)
    assert chance.mean > 0.5


def test_honest_sources_are_believed():
    trust = Trust()
    for right in [0, 2, 0, 1] * 50:  # half of the first guesses, half of the second after those
        trust.learn([0.5, 0.5], right)
        trust.fade(1 + right)
        assert trust.factor > 0.8


def test_a_source_that_claims_too_much_is_found_out_and_asked_again_later():
    trust = Trust()
    assert trust.factor == 1.0
    for _ in range(20):
        trust.learn([0.75, 0.75, 0.75], 0)
        trust.fade(1)
    assert trust.factor < 0.25
    trust.fade(1000)
    assert trust.factor > 0.9
