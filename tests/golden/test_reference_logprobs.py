"""The NumPy executor agrees with the float32 truth of the real models' weights."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.formats.gguf import GgufFile
from ellm.formats.gguf.model_config import read_model_config
from ellm.formats.quantization import decode
from ellm.models import ARCHITECTURES, build_program
from ellm.program.executor import BLOCK_TOKENS, SequenceRows
from ellm.program.numpy_executor import NumpyExecutor
from tests.support.real_models import LARGE_MODELS, SMALL_MODELS, model_path, reference

# The records are rounded to 1e-5; float32 in another order differs by about 1e-4 at the worst
# position and 1e-5 on average.
MAX_DIFFERENCE = 1e-3
MEAN_DIFFERENCE = 1e-4

_CHUNK = 256


def score(name: str, *, keep_weights: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return top-1 token and log-probability of the true next token at every position."""
    source = GgufFile.open(model_path(name))
    config = read_model_config(source, ARCHITECTURES)
    program = build_program(config, source.tensors, path=str(source.path))
    tokens = np.array(reference(name)["text_ids"], np.int32)

    def weights(tensor: str) -> NDArray[np.float32]:
        entry = source.tensors[tensor]
        return decode(entry.type_name, source.read(tensor), entry.shape)

    # Without keeping them, every step decodes all weights again: then one step does it all.
    chunk = _CHUNK if keep_weights else tokens.size
    num_blocks = -(-tokens.size // BLOCK_TOKENS)
    executor = NumpyExecutor(
        program, cache(weights) if keep_weights else weights, num_blocks, max_rows=chunk
    )
    # Blocks out of order, so that a wrong look-up cannot pass.
    blocks = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    top1, logprobs = [], []
    for start in range(0, tokens.size, chunk):
        part = tokens[start : start + chunk]
        wanted = np.arange(min(part.size, tokens.size - 1 - start), dtype=np.int32)
        logits = executor.step(part, [SequenceRows(blocks, start, part.size)], wanted)
        top1.append(logits.argmax(axis=1))
        following = tokens[start + 1 : start + 1 + wanted.size]
        logprobs.append(log_softmax_at(logits, following))
    return np.concatenate(top1), np.concatenate(logprobs)


def log_softmax_at(logits: NDArray[np.float32], tokens: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the log-probability of one token per row, in double precision."""
    found = np.empty(tokens.size)
    for row, token in enumerate(tokens):
        shifted = logits[row].astype(np.float64) - logits[row].max()
        found[row] = shifted[token] - np.log(np.exp(shifted).sum())
    return found


def assert_agrees(name: str, *, keep_weights: bool) -> None:
    record = reference(name)
    top1, logprobs = score(name, keep_weights=keep_weights)
    difference = np.abs(logprobs - record["f32_logprob_of_next"])
    assert difference.max() <= MAX_DIFFERENCE
    assert difference.mean() <= MEAN_DIFFERENCE
    assert np.array_equal(top1, record["f32_top1"])


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_small_models_agree_with_the_float32_truth(name: str) -> None:
    assert_agrees(name, keep_weights=True)


@pytest.mark.models
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE_MODELS)
def test_large_models_agree_with_the_float32_truth(name: str) -> None:
    assert_agrees(name, keep_weights=False)
