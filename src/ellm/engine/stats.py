"""The figures of one answer, and the bandwidth they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ellm.hardware.bandwidth import read_bandwidth_gb_per_s
from ellm.sparse.counts import ChoiceTotals
from ellm.speculative.counts import SourceCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known about a loaded model and its executor, for statistics.

    Attributes:
        isa: Kernels in use, such as "avx512", or "numpy".
        threads: Threads of the executor.
        model_load_ms: Time from the path to a model that takes requests. The first text to be
            encoded waits for its encoder besides, a third of a second for 150,000 merges, unless
            the weights had to be repacked: then it is built here.
        weights_bytes: Weights as the executor holds them.
        kv_bytes: All KV blocks, those included that keep what earlier requests read.
        arena_bytes: Slots of the largest step.
        bytes_per_token: Bytes read to decode one token at a depth of that many cached tokens.
        bytes_saved: Bytes that rows did not read because of what they chose.
        choosing_heads: KV heads of all layers that read the whole context.
    """

    isa: str
    threads: int
    model_load_ms: float
    weights_bytes: int
    kv_bytes: int
    arena_bytes: int
    bytes_per_token: Callable[[int], int]
    bytes_saved: Callable[[ChoiceTotals], int] = lambda _totals: 0
    choosing_heads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What one answer took.

    The three figures about bandwidth are measured on demand, once per process and thread count
    (about 0.3 s), so that answers do not wait for them.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        answer_tokens: Tokens generated.
        prompt_seconds: From the first step of the prompt to the first token; 0 if there was none.
        time_to_first_token_seconds: From the request to its first token; 0 if there was none.
        decode_seconds: From the first token to the last.
        model_load_ms: Time the model took to load.
        weights_bytes: Weights as the executor holds them.
        kv_bytes: All KV blocks, those included that keep what earlier requests read.
        arena_bytes: Slots of the largest step.
        peak_rss_bytes: Most memory this process ever held.
        isa: Kernels in use.
        threads: Threads in use.
        bytes_per_token: Bytes read per decoded token at this answer's mean depth.
        attention: Mode of the answer: "exact", "bounded", "sparse" or "auto".
        kv_blocks_total: KV blocks of 64 tokens behind the answer's rows, summed over rows, layers
            and KV heads; layers with a sliding window are not counted.
        kv_blocks_read: Those of them that were read in full.
        widened: Times a row and KV head needed more than 4,096 chosen tokens.
        skipped_mass: Mean share of the attention in blocks that entered through their means only:
            exact in "bounded" mode, estimated in "sparse".
        cached_tokens_memory: Prompt tokens that were in memory from earlier requests.
        cached_tokens_disk: Prompt tokens that came from disk.
        kv_used_bytes: KV blocks in use or kept for later requests; 0 where none are kept.
        disk_used_bytes: KV blocks on disk.
        proposed_tokens: Guesses at next tokens that steps checked.
        accepted_tokens: Those that were right.
        tokens_per_step: Tokens per step after the first token; 1 without guesses.
        guesses: The same by source and position.
        guessing_seconds: What making guesses took.
        saved_seconds: What guesses saved, by the time that steps of one row take here.
    """

    prompt_tokens: int
    answer_tokens: int
    prompt_seconds: float
    time_to_first_token_seconds: float
    decode_seconds: float
    model_load_ms: float
    weights_bytes: int
    kv_bytes: int
    arena_bytes: int
    peak_rss_bytes: int
    isa: str
    threads: int
    bytes_per_token: int
    attention: str
    kv_blocks_total: int
    kv_blocks_read: int
    widened: int
    skipped_mass: float
    cached_tokens_memory: int
    cached_tokens_disk: int
    kv_used_bytes: int
    disk_used_bytes: int
    proposed_tokens: int
    accepted_tokens: int
    tokens_per_step: float
    guesses: Mapping[str, SourceCounts]
    guessing_seconds: float
    saved_seconds: float

    @property
    def acceptance_rate(self) -> float:
        """Share of guesses that were right; 0 without guesses."""
        return self.accepted_tokens / self.proposed_tokens if self.proposed_tokens else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Rate at which the prompt was read, of what had to be; 0 if it was not read to its end."""
        read = self.prompt_tokens - self.cached_tokens_memory - self.cached_tokens_disk
        return read / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Rate from the first token to the last; 0 with fewer than two tokens."""
        if self.answer_tokens < 2 or not self.decode_seconds:
            return 0.0
        return (self.answer_tokens - 1) / self.decode_seconds

    @property
    def read_bandwidth_gb_per_s(self) -> float:
        """Measured read bandwidth of this machine with this many threads, in 1e9 bytes."""
        return read_bandwidth_gb_per_s(self.threads)

    @property
    def decode_ceiling_tokens_per_second(self) -> float:
        """Bandwidth divided by bytes per token; 0 where the executor counts no bytes."""
        if not self.bytes_per_token:
            return 0.0
        return self.read_bandwidth_gb_per_s * 1e9 / self.bytes_per_token

    @property
    def mem_bandwidth_util(self) -> float:
        """Share of the decode ceiling that was reached; 0 where there is none."""
        ceiling = self.decode_ceiling_tokens_per_second
        return self.decode_tokens_per_second / ceiling if ceiling else 0.0


NUMPY_FACTS = ModelFacts(
    isa="numpy",
    threads=1,
    model_load_ms=0.0,
    weights_bytes=0,
    kv_bytes=0,
    arena_bytes=0,
    bytes_per_token=lambda _depth_tokens: 0,
)
"""Facts of an executor that counts nothing, as the NumPy one."""
