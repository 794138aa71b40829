"""Where sparse steps begin to pay follows from three medians."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.calibration.cost import StepTimes, sparse_from_tokens, time_steps
from ellm.program.executor import ChoiceRule, Estimate
from ellm.quality.fidelity import Passage

NEVER = 131_072
SPARSE = ChoiceRule(Estimate.SCAN, 0.9)


def times(shallow: float, exact: float, sparse: float, depth: int = 8192) -> StepTimes:
    return StepTimes(
        depth_tokens=depth, shallow_seconds=shallow, exact_seconds=exact, sparse_seconds=sparse
    )


@pytest.mark.parametrize(
    ("shallow", "exact", "sparse", "expected"),
    [
        # 0.95 (10 + 10 x) = 10 + x at x = 1/17 of 7,680 tokens beyond 512.
        (10.0, 20.0, 11.0, 1024),
        # 0.95 (10 + 10 x) = 10 + 8 x at x = 1/3.
        (10.0, 20.0, 18.0, 4096),
        # 3.5 % faster at the depth; 5 % beyond it: 0.95 (10 + 10 x) = 10 + 9.3 x at x = 2.5.
        (10.0, 20.0, 19.3, 20_480),
        (10.0, 20.0, 19.5, NEVER),
        (10.0, 20.0, 20.0, NEVER),
        (10.0, 20.0, 25.0, NEVER),
        # Depth costs nothing, as far as can be measured.
        (10.0, 10.0, 10.0, NEVER),
        (10.0, 9.9, 10.1, NEVER),
        (0.0, 10.0, 1.0, 1024),
    ],
)
def test_break_even_depths(shallow: float, exact: float, sparse: float, expected: int) -> None:
    assert sparse_from_tokens(times(shallow, exact, sparse), NEVER) == expected


def test_a_depth_beyond_the_context_is_never() -> None:
    found = times(10.0, 20.0, 18.0)
    assert sparse_from_tokens(found, 4096) == 4096
    assert sparse_from_tokens(found, 3000) == 3000
    # Rounding up does not lead beyond it either.
    assert sparse_from_tokens(found, 3500) == 3500


seconds = st.floats(1e-6, 1e3)


@given(seconds, seconds, seconds, st.integers(1024, NEVER))
def test_from_that_depth_on_sparse_is_five_percent_faster_and_a_step_before_it_is_not(
    shallow: float, exact: float, sparse: float, depth: int
) -> None:
    found = sparse_from_tokens(times(shallow, exact, sparse, depth), NEVER)
    assert 1024 <= found <= NEVER

    def faster(at: int) -> bool:
        share = (at - 512) / (depth - 512)
        predicted = shallow + share * (exact - shallow)
        return shallow + share * (sparse - shallow) <= 0.95 * predicted + 1e-9 * (exact + sparse)

    if found < NEVER:
        assert found % 1024 == 0
        assert faster(found)
    if found > 1024:
        before = found - 1024
        assert not faster(before) or before < 512 + 1e-6 * depth


class TimedReplay:
    """Steps take as long as is written down for their position and kind."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[tuple[int, bool]] = []
        self.read_tokens: list[int] = []

    def clock(self) -> float:
        return self.now

    def read(self, tokens: list[int]) -> None:
        self.read_tokens.append(len(tokens))
        self.now += 100.0

    def run(self, token: int, position: int, rule: ChoiceRule | None) -> None:
        assert token == 7
        assert rule in (None, SPARSE)
        self.steps.append((position, rule is not None))
        slow = 50.0 if len(self.steps) <= 2 or len(self.steps) == 11 else 0.0
        self.now += slow + (1.0 if position == 512 else 3.0 if rule is None else 2.0)


def test_steps_are_timed_in_turn_and_single_slow_ones_do_not_count() -> None:
    replay, heard = TimedReplay(), []
    passage = Passage(
        text="a", length_tokens=2048, prompt=[1] * 2048, tail=[7, 8], following=[8, 9], parts={}
    )
    found = time_steps(replay, passage, SPARSE, replay.clock, lambda: heard.append(1))  # type: ignore[arg-type]
    assert found == times(1.0, 3.0, 2.0, depth=2048)
    deep = [kind for position, kind in replay.steps if position == 2048]
    assert deep == [False, True] * (len(deep) // 2)
    assert len(deep) >= 2 * 16
    assert replay.steps.count((512, False)) >= 16
    assert replay.read_tokens == [512]
    assert len(heard) == len(replay.steps)
