"""From a checked request to a sequence, and from a sequence to what the caller gets."""

from __future__ import annotations

from collections.abc import Sequence

from ellm.config.sampling import SamplingParams
from ellm.engine.answer import Answer
from ellm.engine.outputs import RequestOutput, StreamChunk
from ellm.engine.parts import LoadedModel
from ellm.engine.prompts import check_fits
from ellm.engine.sequence import Sequence as TokenSequence
from ellm.engine.stats import ModelFacts, Stats
from ellm.errors import RequestError
from ellm.hardware.memory import peak_rss_bytes
from ellm.program.executor import BLOCK_TOKENS
from ellm.sampling.sampler import Sampler
from ellm.sparse.policy import AttentionPolicy
from ellm.sparse.tracing import BlockTracer
from ellm.speculative.chain import SequenceChains
from ellm.speculative.counts import ChainLog
from ellm.tokenizers.stream import StreamDecoder


def params_for(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """Return one set of parameters per prompt; one given set serves all.

    Raises:
        RequestError: There are more or fewer sets than prompts, or they are something else.
    """
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    chosen = list(params)
    if len(chosen) != num_prompts:
        raise RequestError(f"{len(chosen)} sets of parameters for {num_prompts} prompts")
    for item in chosen:
        if not isinstance(item, SamplingParams):
            raise RequestError(f"params are a {type(item).__name__}, expected SamplingParams")
    return chosen


def new_sequence(
    tokens: list[int],
    params: SamplingParams,
    model: LoadedModel,
    *,
    vocab_size: int,
    attention: AttentionPolicy,
    tracer: BlockTracer | None = None,
    chains: SequenceChains | None = None,
) -> TokenSequence:
    """Return a sequence for `tokens`, with an answer that the context has room for.

    Raises:
        CapacityError: The context has no room for the prompt and one token.
        RequestError: The parameters name tokens the model has not.
    """
    check_fits(len(tokens), model.context_tokens, answer_tokens=1)
    room = model.context_tokens - len(tokens)
    answer = Answer(
        params,
        max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        end_tokens=model.tokenizer.eos_ids,
        sampler=Sampler(params, tokens, vocab_size),
        decoder=StreamDecoder(model.tokenizer),
    )
    return TokenSequence(
        tokens,
        answer,
        attention=attention,
        tracer=tracer,
        chains=chains,
        cache_salt=params.cache_salt,
    )


def request_output(sequence: TokenSequence, facts: ModelFacts) -> RequestOutput:
    """Return the finished answer of `sequence`."""
    answer = sequence.answer
    if answer.finish_reason is None:
        raise ValueError("the answer is not finished")
    return RequestOutput(
        text=answer.text,
        token_ids=list(answer.tokens),
        finish_reason=answer.finish_reason,
        stats=request_stats(sequence, facts),
        logprobs=answer.logprobs_of(slice(None)),
    )


def request_stats(sequence: TokenSequence, facts: ModelFacts) -> Stats:
    """Return the figures of a finished sequence."""
    times = sequence.timeline
    answer_tokens = len(sequence.answer.tokens)
    first, last = times.first_token, times.last_token
    rows = range(len(sequence.prompt), sequence.cached_tokens)
    chosen = sequence.choices.totals
    # Rows that did not choose read everything.
    total = sum(position // BLOCK_TOKENS for position in rows) * facts.choosing_heads
    total = max(total, chosen.blocks_total)  # an executor that counts no heads
    depth = len(sequence.prompt) + answer_tokens // 2
    reuse = sequence.reuse
    kv_used_bytes, disk_used_bytes = reuse.used_bytes()
    log = ChainLog() if sequence.chains is None else sequence.chains.log
    sources = log.by_source()
    saved = facts.bytes_saved(chosen) // max(1, len(rows))
    return Stats(
        prompt_tokens=len(sequence.prompt),
        answer_tokens=answer_tokens,
        prompt_seconds=_between(times.first_step, first),
        time_to_first_token_seconds=_between(times.submitted, first),
        decode_seconds=_between(first, last),
        model_load_ms=facts.model_load_ms,
        weights_bytes=facts.weights_bytes,
        kv_bytes=facts.kv_bytes,
        arena_bytes=facts.arena_bytes,
        peak_rss_bytes=peak_rss_bytes(),
        isa=facts.isa,
        threads=facts.threads,
        bytes_per_token=facts.bytes_per_token(depth) - saved,
        attention=sequence.attention.config.mode,
        kv_blocks_total=total,
        kv_blocks_read=total - (chosen.blocks_total - chosen.blocks_read),
        widened=chosen.widened,
        skipped_mass=chosen.skipped_mass,
        cached_tokens_memory=reuse.memory_tokens,
        cached_tokens_disk=reuse.disk_tokens,
        kv_used_bytes=kv_used_bytes,
        disk_used_bytes=disk_used_bytes,
        proposed_tokens=sum(counts.proposed_tokens for counts in sources.values()),
        accepted_tokens=sum(counts.accepted_tokens for counts in sources.values()),
        tokens_per_step=log.tokens / log.steps if log.steps else float(answer_tokens > 1),
        guesses=sources,
        guessing_seconds=log.guessing_seconds,
        saved_seconds=log.saved_seconds,
    )


class ChunkCursor:
    """Remembers what of an answer was handed out; other threads may extend it meanwhile."""

    def __init__(self, sequence: TokenSequence, facts: ModelFacts) -> None:
        """Start before the first token."""
        self._sequence = sequence
        self._facts = facts
        self._seen_tokens = 0
        self._seen_pieces = 0
        self._ended = False

    def next_chunk(self) -> StreamChunk | None:
        """Return what is new, or None if nothing is."""
        answer = self._sequence.answer
        # Read first: once it is set, tokens and pieces are final.
        reason = answer.finish_reason
        tokens = slice(self._seen_tokens, len(answer.tokens))
        pieces = slice(self._seen_pieces, len(answer.pieces))
        if self._ended or (reason is None and tokens.start == tokens.stop):
            return None
        self._seen_tokens, self._seen_pieces = tokens.stop, pieces.stop
        self._ended = reason is not None
        return StreamChunk(
            text="".join(answer.pieces[pieces]),
            token_ids=answer.tokens[tokens],
            logprobs=answer.logprobs_of(tokens),
            finish_reason=reason,
            stats=None if reason is None else request_stats(self._sequence, self._facts),
        )


def _between(start: float | None, end: float | None) -> float:
    return 0.0 if start is None or end is None else end - start
