"""Rows that choose their KV blocks keep law 1 to the bit, and compute what the NumPy twin does."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ellm import native
from ellm.models import ARCHITECTURES
from ellm.program.executor import ChoiceRule, Estimate, Observation, SequenceRows
from ellm.program.numpy_executor import NumpyExecutor
from tests.support.choosing_rows import (
    HEADS,
    READ,
    SKIPPED,
    TOTAL,
    blocks_read,
    choices,
    observation,
    run_tail,
)
from tests.support.native_models import native_executor, run_chunks
from tests.support.tiny_models import TinyModel, tiny_model

ISAS = native.supported_isas()
# Groups of one and of more heads than a kernel takes at once, heads of several vectors.
MODELS = {name: (name, {}) for name in ARCHITECTURES} | {
    "one head per KV head": ("llama", {"num_kv_heads": 6, "num_layers": 2}),
    "twelve heads on one": ("qwen2", {"num_heads": 12, "num_kv_heads": 1, "num_layers": 2}),
    "heads of 80": ("llama", {"head_dim": 80, "num_layers": 2}),
}
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)
EVERY_ARCHITECTURE = pytest.mark.parametrize("name", ARCHITECTURES)
EVERY_ESTIMATE = pytest.mark.parametrize("estimate", Estimate)

NUM_BLOCKS = 48
# The tail starts within a block and goes on into the next: 21 and then 22 stored blocks, of which
# 12 and 13 may be left unread.
PROMPT_TOKENS = 1400
TAIL_TOKENS = 40

RULES_BESIDE_NUMPY = [
    *(ChoiceRule(estimate, mass=0.7) for estimate in Estimate),
    ChoiceRule(Estimate.SCAN, mass=0.9, max_blocks=6),
]


@functools.cache
def model_of(name: str) -> TinyModel:
    architecture, changes = MODELS[name]
    return tiny_model(architecture, **changes)


def full_layers(model: TinyModel) -> int:
    return 1 if model.config.sliding_window else model.config.num_layers


def random_tokens(count, seed=1):
    return np.random.default_rng(seed).integers(0, 131, count, dtype=np.int32)


TEXT = random_tokens(PROMPT_TOKENS + TAIL_TOKENS + 60)
PROMPT, TAIL = TEXT[:PROMPT_TOKENS], TEXT[PROMPT_TOKENS : PROMPT_TOKENS + TAIL_TOKENS]


def after_prompt(model, *, prompt=PROMPT, blocks=None, **options):
    """Return an int8 executor that has read the prompt, exactly."""
    executor = native_executor(model, kv_type="int8", **{"num_blocks": NUM_BLOCKS} | options)
    if prompt.size:
        run_chunks(executor, prompt, [512], blocks)
    return executor


@functools.cache
def one_by_one(name, rule):
    """Return the tail as one thread and steps of one row compute it."""
    return run_tail(after_prompt(model_of(name)), TAIL, PROMPT_TOKENS, rule, rows_per_step=1)


def assert_same(found, expected):
    np.testing.assert_array_equal(found.logits, expected.logits)
    np.testing.assert_array_equal(found.counts, expected.counts)


@EVERY_MODEL
def test_the_whole_mass_without_a_limit_gives_the_exact_bits(name):
    model = model_of(name)
    exact = one_by_one(name, None)
    executor = after_prompt(model)
    stored = np.arange(PROMPT_TOKENS, PROMPT_TOKENS + TAIL_TOKENS) // 64
    everything = stored * full_layers(model) * model.config.num_kv_heads
    for estimate in Estimate:
        whole = ChoiceRule(estimate, mass=1.0)
        seen = observation(model.program, TAIL_TOKENS, 22)
        observed = run_tail(executor, TAIL, PROMPT_TOKENS, whole, observed=seen)
        plain = run_tail(executor, TAIL, PROMPT_TOKENS, whole)
        np.testing.assert_array_equal(plain.logits, exact.logits)
        assert_same(observed, plain)
        np.testing.assert_array_equal(plain.counts[:, TOTAL], everything)
        np.testing.assert_array_equal(plain.counts[:, READ], everything)
        assert not plain.counts[:, SKIPPED].any()
        np.testing.assert_array_equal((seen.shares > 0).sum(axis=(1, 2, 3)), everything)
        # A rule that leaves something out changes every row: the bits above are no accident.
        some = one_by_one(name, ChoiceRule(estimate, mass=0.8))
        assert (some.logits != exact.logits).any(axis=1).all()


@functools.cache
def stored_text(name):
    """Return 22 blocks of the text as they are stored."""
    executor = after_prompt(model_of(name), prompt=TEXT[:1408])
    return [executor.read_block(block) for block in range(22)]


@EVERY_ESTIMATE
@EVERY_MODEL
def test_every_isa_gives_the_scalar_bits_and_counts(name, estimate):
    def tail_on(isa):
        # The blocks are copied: reading them on slow kernels is the exact attention's test.
        executor = native_executor(model_of(name), isa=isa, kv_type="int8", num_blocks=NUM_BLOCKS)
        for block, content in enumerate(stored_text(name)):
            executor.write_block(block, content)
        return run_tail(executor, TEXT[1408:1420], 1408, ChoiceRule(estimate, mass=0.8))

    scalar, *others = map(tail_on, ISAS)
    assert (scalar.counts[:, READ] < scalar.counts[:, TOTAL]).all()
    for other in others:
        assert_same(other, scalar)


@pytest.mark.parametrize("threads", [1, 2, 3])
@EVERY_MODEL
def test_rows_per_step_and_threads_change_no_bit_and_no_count(name, threads):
    executor = after_prompt(model_of(name), threads=threads)
    for estimate in Estimate:
        rule = ChoiceRule(estimate, mass=0.8)
        expected = one_by_one(name, rule)
        assert (expected.counts[:, READ] < expected.counts[:, TOTAL]).all()
        # From here a single row is on either side of the border of a block.
        few = run_tail(executor, TAIL[:8], PROMPT_TOKENS, rule, rows_per_step=1)
        np.testing.assert_array_equal(few.logits, expected.logits[:8])
        for rows_per_step in (3, 8, TAIL_TOKENS):
            found = run_tail(executor, TAIL, PROMPT_TOKENS, rule, rows_per_step=rows_per_step)
            assert_same(found, expected)


@EVERY_MODEL
def test_other_sequences_change_no_bit_and_no_count(name):
    model = model_of(name)
    # Prompt and rows; some exact, some with a rule, one too short to choose, one read from its
    # start. Eight rows go through the phases of choosing together: two sequences share those.
    sequences = [
        (1404, 10, ChoiceRule(Estimate.SCAN, mass=0.8)),
        (900, 1, None),
        (1300, 5, ChoiceRule(Estimate.EXACT, mass=0.9, max_blocks=5)),
        (0, 70, None),
        (100, 3, ChoiceRule(Estimate.SCAN, mass=0.5)),
        (1000, 9, ChoiceRule(Estimate.MEAN, mass=0.7)),
    ]
    texts = [random_tokens(start + rows, seed=start) for start, rows, _ in sequences]
    together = native_executor(model, kv_type="int8", threads=2, num_blocks=96)
    ids = iter(np.random.default_rng(0).permutation(96).astype(np.int32))
    step_rows, parts, alone = [], [], []
    for text, (start, rows, rule) in zip(texts, sequences, strict=True):
        table = np.array([next(ids) for _ in range(-(-text.size // 64))], dtype=np.int32)
        if start:
            run_chunks(together, text[:start], [512], table)
        chosen = None if rule is None else choices(rule, rows)
        step_rows.append(SequenceRows(table, start, rows, chosen))
        parts.append(text[start:])
        executor = after_prompt(model, prompt=text[:start])
        alone.append(run_tail(executor, text[start:], start, rule))
    tokens = np.concatenate(parts)
    logits = together.step(tokens, step_rows, np.arange(tokens.size, dtype=np.int32))
    np.testing.assert_array_equal(logits, np.concatenate([tail.logits for tail in alone]))
    for run, tail in zip(step_rows, alone, strict=True):
        if run.choices is not None:
            np.testing.assert_array_equal(run.choices.counts, tail.counts)


@EVERY_ESTIMATE
@EVERY_MODEL
def test_rejected_tokens_leave_no_trace(name, estimate):
    model, rule = model_of(name), ChoiceRule(estimate, mass=0.8)
    rest = TEXT[PROMPT_TOKENS:]
    expected = run_tail(after_prompt(model), rest, PROMPT_TOKENS, rule)
    executor = after_prompt(model)
    # Over the border of a block: it is stored with wrong tokens, and then with the right ones.
    wrong = run_tail(executor, random_tokens(30, seed=2), PROMPT_TOKENS, rule)
    assert (wrong.logits != expected.logits[:30]).any(axis=1).all()
    found = run_tail(executor, rest[:3], PROMPT_TOKENS, rule)
    np.testing.assert_array_equal(found.logits, expected.logits[:3])
    run_tail(executor, random_tokens(20, seed=3), PROMPT_TOKENS + 3, rule)
    later = run_tail(executor, rest[3:], PROMPT_TOKENS + 3, rule, rows_per_step=9)
    np.testing.assert_array_equal(later.logits, expected.logits[3:])
    np.testing.assert_array_equal(later.counts, expected.counts[3:])


@EVERY_ARCHITECTURE
def test_chosen_rows_are_as_close_to_numpy_as_exact_ones(name):
    model, tokens = model_of(name), TEXT[1408:1416]
    executors = [
        after_prompt(model, prompt=TEXT[:1408]),
        NumpyExecutor(model.program, model.weights, NUM_BLOCKS),
    ]
    run_chunks(executors[1], TEXT[:1408], [512])

    def tails(rule):
        shape = (tokens.size, model.program.num_layers, model.program.num_kv_heads, 22)
        seen = [Observation(shares=np.zeros(shape, np.float32)) for _ in executors]
        return [
            run_tail(executor, tokens, 1408, rule, observed=shares)
            for executor, shares in zip(executors, seen, strict=True)
        ]

    def errors(found, expected):
        return np.abs(found.logits - expected.logits).mean(axis=1)

    exact, exact_twin = tails(None)
    # int8 against float KV.
    rounding = errors(exact, exact_twin)
    assert rounding.min() > 0
    for rule in RULES_BESIDE_NUMPY:
        found, twin = tails(rule)
        np.testing.assert_array_equal(found.counts[:, TOTAL], twin.counts[:, TOTAL])
        np.testing.assert_array_equal(found.counts[:, HEADS], twin.counts[:, HEADS])
        assert (twin.counts[:, READ] < twin.counts[:, TOTAL]).all()
        assert np.abs(found.counts[:, READ] - twin.counts[:, READ]).max() <= 2
        skipped = [tail.counts[:, SKIPPED] / tail.counts[:, HEADS] for tail in (found, twin)]
        np.testing.assert_allclose(*skipped, atol=0.02)
        # A block next to the border of being read is chosen by one and not by the other now and
        # then, in one of up to six choices of a row. Rows without such a block are off by rounding.
        read = [blocks_read(tail.observed.shares) for tail in (found, twin)]
        differ = (read[0] != read[1]).any(axis=3)
        assert differ.mean() < 0.25
        same = ~differ.any(axis=(1, 2))
        assert same.any()
        assert errors(found, twin)[same].mean() < 1.25 * rounding[same].mean()
        assert errors(found, twin).mean() < 0.5 * errors(twin, exact_twin).mean()
