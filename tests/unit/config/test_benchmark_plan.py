import pytest

from ellm.config.benchmark import RUN_AHEAD_TOKENS, BenchmarkPlan, room_tokens
from ellm.errors import ConfigError
from ellm.program.executor import BLOCK_TOKENS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("depths_tokens", ()),
        ("depths_tokens", (0,)),
        ("depths_tokens", (5, True)),
        ("depths_tokens", (2**31,)),
        ("depths_tokens", (64, 32)),
        ("depths_tokens", (64, 64)),
        ("decode_steps", 0),
        ("decode_steps", 10_001),
        ("row_counts", ()),
        ("row_counts", (0, 1)),
        ("row_counts", (65,)),
        ("row_counts", (2, 1)),
        ("repetitions", 0),
        ("rows_per_chunk", 0),
    ],
)
def test_plan_that_cannot_work_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"^{field} is .*allowed is"):
        BenchmarkPlan(**({"depths_tokens": (64,)} | {field: value}))


def test_steps_have_no_more_rows_than_a_chunk():
    with pytest.raises(ConfigError, match=r"^row_counts is 5; allowed is an integer in 1\.\.4"):
        BenchmarkPlan(depths_tokens=(64,), rows_per_chunk=4, row_counts=(1, 5))


@pytest.mark.parametrize(
    ("decode_steps", "row_counts", "room"),
    [(24, (1, 8), 26), (1, (1, 8), 8), (1, (1,), 3), (500, (1, 8), 64), (500, (64,), 64)],
)
def test_room_is_what_the_longest_run_ahead_writes(decode_steps, row_counts, room):
    assert room_tokens(decode_steps, row_counts) == room
    plan = BenchmarkPlan(depths_tokens=(100, 900), decode_steps=decode_steps, row_counts=row_counts)
    assert plan.context_tokens == 900 + room


def test_steps_run_ahead_no_further_than_the_kv_store_goes_back():
    assert RUN_AHEAD_TOKENS == BLOCK_TOKENS
