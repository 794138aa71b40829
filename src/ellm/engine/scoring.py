"""Teacher-forced scoring: what the model expected at every position of a given text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ellm.engine.core import EngineCore
from ellm.engine.outputs import Score
from ellm.errors import NativeError
from ellm.sampling.logprobs import LogSoftmax

# Logits of a chunk, float32 (rows, V): at V = 262,144 a chunk of 512 rows would take 0.5 GB.
MAX_LOGITS_BYTES = 64 << 20


def score(core: EngineCore, tokens: Sequence[int], on_read: Callable[[int], None]) -> Score:
    """Run all of `tokens` (n,) but the last and compare; `on_read` hears how many were read.

    Raises:
        CapacityError: Too few KV blocks are free.
        AbortedError: The engine was told to stop.
        NativeError: The logits are not numbers.
    """
    inputs = np.array(tokens[:-1], dtype=np.int32)
    top1 = np.empty(len(inputs), dtype=np.int64)
    logprob = np.empty(len(inputs), dtype=np.float64)
    rows = max(1, min(core.max_step_rows, MAX_LOGITS_BYTES // (4 * core.vocab_size)))
    with core.reserve(len(inputs)) as reservation:
        for start in range(0, len(inputs), rows):
            chunk, _ = core.run_reserved(reservation, inputs[start : start + rows], start)
            for position, logits in enumerate(chunk, start):
                log_softmax = LogSoftmax.of(logits)
                if not np.isfinite(log_softmax.largest):
                    raise NativeError(
                        f"the largest logit at position {position} is {log_softmax.largest}, "
                        "expected a finite number; the model's weights are damaged"
                    )
                top1[position] = logits.argmax()
                logprob[position] = log_softmax(logits[tokens[position + 1]])
            on_read(start + len(chunk))
    return Score(top1=top1, logprob=logprob)
