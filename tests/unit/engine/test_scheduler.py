"""Properties of the scheduler over random requests, against what every step must keep."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ellm.config.sampling import SamplingParams
from ellm.engine.answer import Answer
from ellm.engine.scheduler import Scheduler
from ellm.engine.sequence import Sequence
from ellm.kv.block_pool import BlockPool
from ellm.sampling.sampler import Sampler

NUM_BLOCKS = 6


class NoText:
    def push(self, _token):
        return ""

    def flush(self):
        return ""


def make_sequence(prompt_tokens, max_tokens):
    params = SamplingParams(max_tokens=max_tokens)
    return Sequence(
        [0] * prompt_tokens,
        Answer(
            params,
            max_tokens=max_tokens,
            end_tokens=frozenset(),
            sampler=Sampler(params, [0], 4),
            decoder=NoText(),
        ),
    )


def run_parts(scheduler, parts):
    """Do what the engine does after a step, with answers that end at their longest."""
    for part in parts:
        part.sequence.cached_tokens = part.start + part.count
        if part.wants_logits:
            part.sequence.answer.tokens.append(1)
            if len(part.sequence.answer.tokens) == part.sequence.answer.max_tokens:
                part.sequence.answer.finish("length")
                scheduler.remove(part.sequence)


def check_parts(parts, max_step_rows):
    assert 0 < sum(part.count for part in parts) <= max_step_rows
    assert len({id(part.sequence) for part in parts}) == len(parts)
    held = [block for part in parts for block in part.sequence.blocks.tolist()]
    assert len(held) == len(set(held))
    prefill = [part.sequence.in_prefill for part in parts]
    assert all(prefill) or not any(prefill)
    for part in parts:
        sequence = part.sequence
        assert part.start == sequence.cached_tokens
        assert part.start + part.count <= len(sequence.prompt) + len(sequence.answer.tokens)
        assert part.start + part.count <= 64 * len(sequence.blocks)
        at_end = part.start + part.count == len(sequence.prompt) + len(sequence.answer.tokens)
        assert part.wants_logits == at_end


requests = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 150)), min_size=1, max_size=8)


@settings(deadline=None)
@given(requests=requests, max_step_rows=st.sampled_from([1, 2, 7, 64, 512]), data=st.data())
def test_all_requests_finish_in_order_within_rows_and_blocks(requests, max_step_rows, data):
    pool = BlockPool(NUM_BLOCKS)
    scheduler = Scheduler(pool, max_step_rows=max_step_rows)
    coming = [make_sequence(*request) for request in requests]
    everybody, admitted = list(coming), []
    while coming or scheduler.sequences:
        if coming and (not scheduler.sequences or data.draw(st.integers(0, 9)) == 0):
            scheduler.add(coming.pop(0))
        parts = scheduler.schedule()
        check_parts(parts, max_step_rows)
        admitted += [p.sequence for p in parts if p.start == 0]
        run_parts(scheduler, parts)
    assert [id(item) for item in admitted] == [id(item) for item in everybody]
    assert all(len(item.answer.tokens) == item.answer.max_tokens for item in everybody)
    assert pool.num_free == NUM_BLOCKS
    assert scheduler.schedule() == []


@settings(deadline=None)
@given(requests=requests, gone=st.sets(st.integers(0, 7)), steps=st.integers(0, 30))
def test_removing_anybody_at_any_time_frees_their_blocks(requests, gone, steps):
    pool = BlockPool(NUM_BLOCKS)
    scheduler = Scheduler(pool, max_step_rows=64)
    sequences = [make_sequence(*request) for request in requests]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(steps):
        run_parts(scheduler, scheduler.schedule())
    for index in gone:
        if index < len(sequences):
            scheduler.remove(sequences[index])
            scheduler.remove(sequences[index])
    while parts := scheduler.schedule():
        run_parts(scheduler, parts)
    assert pool.num_free == NUM_BLOCKS
    for index, sequence in enumerate(sequences):
        assert sequence.finished or index in gone


def test_prompts_come_before_answers_and_share_a_step():
    scheduler = Scheduler(BlockPool(NUM_BLOCKS), max_step_rows=64)
    first, second, third = make_sequence(50, 5), make_sequence(30, 5), make_sequence(10, 5)
    scheduler.add(first)
    scheduler.add(second)
    parts = scheduler.schedule()
    assert [(p.sequence is first, p.count, p.wants_logits) for p in parts] == [
        (True, 50, True),
        (False, 14, False),
    ]
    run_parts(scheduler, parts)
    scheduler.add(third)
    parts = scheduler.schedule()
    assert [(p.sequence, p.start, p.count) for p in parts] == [(second, 14, 16), (third, 0, 10)]
    run_parts(scheduler, parts)
    parts = scheduler.schedule()
    assert [(p.sequence, p.start, p.count) for p in parts] == [
        (first, 50, 1),
        (second, 30, 1),
        (third, 10, 1),
    ]


def test_large_request_at_the_front_is_not_overtaken():
    scheduler = Scheduler(BlockPool(2), max_step_rows=512)
    running, large, small = make_sequence(60, 5), make_sequence(120, 5), make_sequence(1, 1)
    for sequence in (running, large, small):
        scheduler.add(sequence)
    assert [part.sequence for part in scheduler.schedule()] == [running]
    scheduler.remove(running)
    assert [part.sequence for part in scheduler.schedule()] == [large]
