"""What was read before is not read again, and nobody can tell but by the clock."""

import functools
import secrets
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ellm import CapacityError, NativeError, SamplingParams
from ellm.config.attention import AttentionConfig
from ellm.engine.chains import Chains
from ellm.engine.prefixes import PrefixConfig
from ellm.kv.disk.disk_cache import DiskCache
from tests.support.byte_tokenizer import VOCAB_SIZE
from tests.support.drafters import OracleDrafter, timeless
from tests.support.fake_engine import GREEDY, make
from tests.support.fake_executor import FakeExecutor, expected_greedy

SECRET = secrets.token_bytes(32)
MODEL = bytes(32)
LONG = [int(x) for x in np.random.default_rng(1).integers(0, 256, 400)]


def shared(disk=None):
    return PrefixConfig(SECRET, MODEL, disk)


OPENED = []


@pytest.fixture(autouse=True)
def closed_caches():
    yield
    while OPENED:
        OPENED.pop().close()


def disk_in(path: Path, **options):
    options = {"block_bytes": 256, "quota_bytes": 1 << 24, "fingerprint": MODEL} | options
    OPENED.append(DiskCache.open(path, **options))
    return OPENED[-1]


def rows_run(executor, first_step=0):
    return sum(part.count for step in executor.steps[first_step:] for part in step)


def test_a_second_question_reads_only_what_is_new():
    executor = FakeExecutor()
    llm = make(executor, reuse=shared())
    first = llm.generate(LONG[:200], GREEDY)
    assert (first.stats.cached_tokens_memory, rows_run(executor)) == (0, 200 + 11)
    steps = len(executor.steps)
    second = llm.generate([*LONG[:190], 7, 8, 9], GREEDY)
    assert second.token_ids == expected_greedy([*LONG[:190], 7, 8, 9], 12)
    assert second.stats.cached_tokens_memory == 128
    assert rows_run(executor, steps) == 193 - 128 + 11


def test_the_answer_is_reused_by_the_next_turn():
    llm = make(reuse=shared())
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    answer = llm.generate(LONG[:100], params).token_ids
    turn = [*LONG[:100], *answer, 1, 2, 3]
    out = llm.generate(turn, GREEDY)
    assert out.token_ids == expected_greedy(turn, 12)
    assert out.stats.cached_tokens_memory == 192


def test_a_prompt_of_whole_blocks_leaves_one_to_run():
    llm = make(reuse=shared())
    for _ in range(2):
        out = llm.generate(LONG[:128], GREEDY)
        assert out.token_ids == expected_greedy(LONG[:128], 12)
    assert out.stats.cached_tokens_memory == 64


def test_answers_that_do_not_read_everything_are_not_reused():
    for mode, reused in (("exact", 192), ("sparse", 64), ("bounded", 64), ("auto", 192)):
        llm = make(reuse=shared(), attention=AttentionConfig(mode=mode))
        answer = llm.generate(LONG[:100], SamplingParams(max_tokens=120, ignore_eos=True)).token_ids
        out = llm.generate([*LONG[:100], *answer], SamplingParams(max_tokens=1))
        assert out.stats.cached_tokens_memory == reused, mode


prefixes = st.lists(st.sampled_from([0, 1]), min_size=0, max_size=3)


@settings(deadline=None, max_examples=80)
@given(
    requests=st.lists(
        st.tuples(prefixes, st.integers(1, 90), st.sampled_from([1, 30])), min_size=1, max_size=12
    ),
    together=st.integers(1, 3),
    num_blocks=st.integers(8, 12),
    rows=st.sampled_from([3, 64, 512]),
)
def test_answers_are_those_without_reuse(requests, together, num_blocks, rows):
    """Texts are made of two sorts of block, so that beginnings are shared in many ways."""
    executor = FakeExecutor(num_blocks=num_blocks)
    llm = make(executor, reuse=shared(), rows_per_chunk=rows)
    for begin in range(0, len(requests), together):
        texts, params = [], []
        for kinds, more, max_tokens in requests[begin : begin + together]:
            text = [token for kind in kinds for token in LONG[64 * kind : 64 * kind + 64]]
            texts.append([*text, *LONG[200 : 200 + more]])
            params.append(SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        for text, asked, out in zip(texts, params, llm.generate(texts, params), strict=True):
            assert out.token_ids == expected_greedy(text, asked.max_tokens)
            assert out.stats.cached_tokens_memory % 64 == 0
            assert out.stats.cached_tokens_memory < len(text)
    core = llm._open.core
    kept = core._prefixes._tree.figures.blocks
    assert core.pool.num_free == num_blocks - kept
    assert core._prefixes._tree.evictable() == kept


def test_prompts_together_read_what_they_share_once():
    executor = FakeExecutor(num_blocks=16)
    llm = make(executor, reuse=shared())
    texts = [[*LONG[:256], *tail] for tail in ([1], [2, 3], [4, 5, 6])]
    outputs = llm.generate(texts, SamplingParams(max_tokens=1))
    assert [out.token_ids for out in outputs] == [expected_greedy(text, 1) for text in texts]
    assert rows_run(executor) == 256 + 1 + 2 + 3
    assert [out.stats.cached_tokens_memory for out in outputs] == [0, 256, 256]


def test_what_was_used_longest_ago_makes_room():
    llm = make(FakeExecutor(num_blocks=6), reuse=shared())
    ask = lambda text: llm.generate(text, SamplingParams(max_tokens=1)).stats.cached_tokens_memory  # noqa: E731
    old, new = LONG[:129], LONG[150:279]
    assert [ask(old), ask(new), ask(old), ask(new)] == [0, 0, 128, 128]
    assert ask([5] * 200) == 0  # takes four of six blocks: two of old ones go
    assert ask(new) == 128
    assert ask(old) == 0


def test_running_answers_keep_their_blocks_while_others_wait():
    executor = FakeExecutor(num_blocks=8)
    llm = make(executor, reuse=shared())
    texts = [LONG[:200], LONG[200:400], [*LONG[:150], 1]]
    outputs = llm.generate(texts, SamplingParams(max_tokens=60, ignore_eos=True))
    assert [out.token_ids for out in outputs] == [expected_greedy(text, 60) for text in texts]
    assert outputs[2].stats.cached_tokens_memory == 128


def test_other_salts_share_nothing():
    llm = make(reuse=shared())
    for salt, cached in (("a", 0), ("b", 0), ("a", 128), ("", 0), ("b", 128)):
        out = llm.generate(LONG[:150], SamplingParams(max_tokens=1, cache_salt=salt))
        assert out.stats.cached_tokens_memory == cached


def test_a_request_that_failed_or_was_stopped_leaves_only_what_it_read():
    stops = {2}
    executor = FakeExecutor(before_step=lambda number: number in stops and llm.abort())
    llm = make(executor, reuse=shared(), rows_per_chunk=64)
    assert llm.generate(LONG[:300], GREEDY).finish_reason == "abort"
    out = llm.generate(LONG[:300], GREEDY)
    assert out.token_ids == expected_greedy(LONG[:300], 12)
    assert out.stats.cached_tokens_memory == 64
    poisoned = make(FakeExecutor(poison=LONG[199]), reuse=shared())
    for _ in range(2):
        with pytest.raises(NativeError):
            poisoned.generate(LONG[:200], GREEDY)


def test_scoring_takes_blocks_that_are_only_kept():
    llm = make(FakeExecutor(num_blocks=6), reuse=shared())
    llm.generate(LONG[:300], SamplingParams(max_tokens=1))
    score = llm.score(LONG[:370])
    assert score.top1[-1] == expected_greedy(LONG[:369], 1)[0]
    with pytest.raises(CapacityError):
        llm.score(LONG[:390])


def test_another_process_finds_it_on_disk(tmp_path):
    first = make(reuse=shared(disk_in(tmp_path)))
    expected = first.generate(LONG[:200], GREEDY)
    first.close()
    executor = FakeExecutor()
    second = make(executor, reuse=shared(disk_in(tmp_path)))
    out = second.generate(LONG[:200], GREEDY)
    assert out.token_ids == expected.token_ids
    assert (out.stats.cached_tokens_memory, out.stats.cached_tokens_disk) == (0, 192)
    assert out.stats.disk_used_bytes > 0
    assert rows_run(executor) == 200 - 192 + 11
    again = second.generate(LONG[:200], GREEDY)
    assert (again.stats.cached_tokens_memory, again.stats.cached_tokens_disk) == (192, 0)
    second.close()


def test_what_memory_let_go_of_comes_back_from_disk(tmp_path):
    llm = make(FakeExecutor(num_blocks=5), reuse=shared(disk_in(tmp_path)))
    for text in (LONG[:200], [3] * 250):
        llm.generate(text, SamplingParams(max_tokens=1))
    assert llm._open.core._prefixes._config.disk.flush()
    out = llm.generate(LONG[:200], GREEDY)
    assert out.token_ids == expected_greedy(LONG[:200], 12)
    assert out.stats.cached_tokens_memory + out.stats.cached_tokens_disk == 192
    assert out.stats.cached_tokens_disk > 0


def test_beginnings_from_memory_go_on_with_blocks_from_disk(tmp_path):
    first = make(reuse=shared(disk_in(tmp_path)))
    first.generate(LONG[:300], SamplingParams(max_tokens=1))
    first.close()
    llm = make(FakeExecutor(num_blocks=16), reuse=shared(disk_in(tmp_path)))
    llm.generate(LONG[:100], SamplingParams(max_tokens=1))
    out = llm.generate(LONG[:300], GREEDY)
    assert out.token_ids == expected_greedy(LONG[:300], 12)
    assert (out.stats.cached_tokens_memory, out.stats.cached_tokens_disk) == (64, 192)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_damaged_pages_cost_time_and_nothing_else(tmp_path, damage):
    first = make(reuse=shared(disk_in(tmp_path)))
    first.generate(LONG[:300], SamplingParams(max_tokens=1))
    first.close()
    (pages,) = tmp_path.rglob("*.pages")
    data = pages.read_bytes()
    if damage == "flip":
        pages.write_bytes(bytes(byte ^ 1 for byte in data))
    elif damage == "truncate":
        pages.write_bytes(data[: len(data) // 2])
    else:
        pages.unlink()
    llm = make(reuse=shared(disk_in(tmp_path)))
    out = llm.generate(LONG[:300], GREEDY)
    assert out.token_ids == expected_greedy(LONG[:300], 12)
    assert out.stats.cached_tokens_disk < 256


def test_other_models_and_secrets_find_nothing(tmp_path):
    first = make(reuse=shared(disk_in(tmp_path)))
    first.generate(LONG[:200], SamplingParams(max_tokens=1))
    first.close()
    other_model = PrefixConfig(SECRET, b"x" * 32, disk_in(tmp_path, fingerprint=b"x" * 32))
    stranger = PrefixConfig(secrets.token_bytes(32), MODEL, None)
    for config in (other_model, stranger):
        llm = make(reuse=config)
        assert llm.generate(LONG[:200], GREEDY).stats.cached_tokens_disk == 0
        llm.close()


@settings(
    deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(1, 399), min_size=1, max_size=5))
def test_any_beginning_can_be_restored(tmp_path_factory, lengths):
    directory = tmp_path_factory.mktemp("kv")
    for length in lengths:
        llm = make(FakeExecutor(num_blocks=8), reuse=shared(disk_in(directory)))
        out = llm.generate(LONG[:length], GREEDY)
        assert out.token_ids == expected_greedy(LONG[:length], 12)
        llm.close()


def test_abort_while_blocks_are_restored_ends_the_answer(tmp_path, monkeypatch):
    first = make(reuse=shared(disk_in(tmp_path)))
    first.generate(LONG[:300], SamplingParams(max_tokens=1))
    first.close()
    monkeypatch.setattr("ellm.engine.prefixes.RESTORED_BLOCKS", 1)
    llm = make(reuse=shared(disk_in(tmp_path)))
    chunks = llm.stream(
        LONG[:300], GREEDY, progress=lambda step: step.done_tokens < 128 or llm.abort()
    )
    assert [chunk.finish_reason for chunk in chunks] == ["abort"]
    out = llm.generate(LONG[:300], GREEDY)
    assert out.token_ids == expected_greedy(LONG[:300], 12)


def oracle_chains(log):
    make_drafter = functools.partial(OracleDrafter, VOCAB_SIZE, expected_greedy, log, error_rate=0)
    return timeless(Chains([make_drafter], most=4))


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_chains_copy_from_what_did_not_have_to_be_read(tmp_path, place):
    """Sources are told of the whole text, wherever its blocks came from."""
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    log = []
    llm = make(reuse=shared(disk_in(tmp_path)), chains=oracle_chains(log))
    llm.generate(LONG[:200], params)
    if place == "disk":
        llm.close()
        llm = make(reuse=shared(disk_in(tmp_path)), chains=oracle_chains(log))
    out = llm.generate(LONG[:200], params)
    assert out.token_ids == expected_greedy(LONG[:200], 40)
    told = [*LONG[:200], *out.token_ids]
    for drafter in log:
        assert drafter.told == told[: len(drafter.told)]
        assert len(drafter.told) > 230
    assert out.stats.tokens_per_step > 2
    known = out.stats.cached_tokens_memory, out.stats.cached_tokens_disk
    assert known == {"memory": (192, 0), "disk": (0, 192)}[place]
    llm.close()
