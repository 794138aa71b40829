"""`LLM`: a model that answers, streams, chats and scores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack, overload

from ellm.config.attention import EXACT, AttentionConfig
from ellm.config.bounds import check_integer
from ellm.config.engine import EngineConfig
from ellm.config.model import ModelConfig
from ellm.config.options import EngineOptions, engine_config
from ellm.config.sampling import SamplingParams
from ellm.engine import prompts
from ellm.engine.chains import Chains
from ellm.engine.core import EngineCore
from ellm.engine.opened import OpenEngine
from ellm.engine.outputs import ProgressCallback, RequestOutput, Score, StreamChunk
from ellm.engine.parts import LoadedModel, LoadProgress
from ellm.engine.prefixes import PrefixConfig
from ellm.engine.progress import ProgressReporter
from ellm.engine.prompts import Prompt
from ellm.engine.replay import Replay
from ellm.engine.requests import params_for, request_output
from ellm.engine.scoring import score
from ellm.engine.sequence import Sequence as TokenSequence
from ellm.engine.stats import NUMPY_FACTS, ModelFacts
from ellm.errors import RequestError
from ellm.program.executor import BLOCK_TOKENS, Executor
from ellm.sparse.policy import AttentionPolicy
from ellm.sparse.tracing import BlockTracer
from ellm.tokenizers.messages import Message
from ellm.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ellm.engine.opening import OpenedModel


class LLM:
    """A loaded model and its KV cache.

    Calls from several threads share steps. A call that fails, or is broken off, leaves nothing
    behind: the next answer is what it would have been. Use it as a context manager, or `close` it.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | OpenedModel | None = None,
        *,
        load_progress: LoadProgress | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        """Load a model.

        Args:
            model: A path, a name of the built-in registry or a Hugging Face `org/repo[:quant]`;
                None is the default model. It is fetched if it is not on this machine. Or what
                `ellm.engine.opening.open_model` returned: a header that was read already.
            load_progress: Called with bytes done and bytes in total while a model is fetched and
                while its weights are prepared.
            options: threads, context_tokens, kv_type, rows_per_chunk, mmap, attention,
                sparse_tokens, sparse_mass, speculation, draft_model, chain_length, cache_reuse,
                cache_dir, kv_cache_gb, cache_disk_gb; see `ellm.EngineOptions`.

        Raises:
            ConfigError: An option cannot work.
            ModelNotFoundError: The reference names nothing.
            DownloadError: The model could not be fetched.
            InvalidModelError: The file is damaged.
            UnsupportedError: The model uses something eLLM does not implement.
            CapacityError: Weights and KV do not fit in memory.
        """
        config = engine_config(options)
        # Not at the top: an engine over other parts works without the compiled core.
        from ellm.engine.loading import load_model

        reference = os.fspath(model) if isinstance(model, os.PathLike) else model
        loaded = load_model(reference, config, load_progress)
        self._set_up(loaded, config.rows_per_chunk, config.attention)

    @classmethod
    def from_parts(
        cls,
        executor: Executor,
        tokenizer: Tokenizer,
        config: ModelConfig,
        *,
        rows_per_chunk: int = 512,
        context_tokens: int | None = None,
        attention: AttentionConfig = EXACT,
        chains: Chains | None = None,
        reuse: PrefixConfig | None = None,
        facts: ModelFacts = NUMPY_FACTS,
    ) -> Self:
        """Return an engine over parts that exist already.

        Raises:
            ConfigError: `context_tokens` is more than the model or the KV blocks hold, or
                `rows_per_chunk` is out of range.
        """
        EngineConfig(rows_per_chunk=rows_per_chunk)
        held = executor.num_blocks * BLOCK_TOKENS
        most = min(config.context_length, held)
        if context_tokens is None:
            context_tokens = most
        check_integer("context_tokens", context_tokens, minimum=2, maximum=most)
        llm = cls.__new__(cls)
        model = LoadedModel(executor, tokenizer, config, context_tokens, facts)
        model = replace(model, chains=chains, reuse=reuse)
        llm._set_up(model, rows_per_chunk, attention)
        return llm

    def _set_up(self, model: LoadedModel, rows_per_chunk: int, attention: AttentionConfig) -> None:
        core = EngineCore(
            model.executor,
            max_step_rows=rows_per_chunk,
            chains=model.chains,
            reuse=model.reuse,
        )
        policy = AttentionPolicy(attention, model.profile)
        self._open: OpenEngine | None = OpenEngine(model, core, policy)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template."""
        return self._model.tokenizer

    @property
    def config(self) -> ModelConfig:
        """The model's hyper-parameters."""
        return self._model.config

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer that fit."""
        return self._model.context_tokens

    @property
    def attention(self) -> AttentionPolicy:
        """Which KV blocks answers read, and by what calibration found."""
        return self._opened().attention

    @property
    def facts(self) -> ModelFacts:
        """What is known about the loaded model: kernels, threads, memory, load time."""
        return self._model.facts

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        progress: ProgressCallback | None = None,
    ) -> RequestOutput: ...

    @overload
    def generate(
        self,
        prompt: list[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: ProgressCallback | None = None,
    ) -> list[RequestOutput]: ...

    def generate(
        self,
        prompt: Prompt | list[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: ProgressCallback | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """Answer one prompt, or several together.

        Args:
            prompt: Text (special tokens in it count, and the model's BOS is added), token ids
                (taken as they are), or a list of either.
            params: How to sample; for several prompts, one for all or one each.
            progress: Called as the prompts are read.

        Returns:
            One output, or a list of them in the order of the prompts.

        Raises:
            RequestError: A prompt is empty or holds ids the model has not.
            CapacityError: A prompt is longer than the context.
        """
        single = prompts.is_single(prompt)
        requests = [prompt] if single else list(prompt)
        opened = self._opened()
        sequences = [
            opened.sequence(request, chosen)
            for request, chosen in zip(requests, params_for(params, len(requests)), strict=True)
        ]
        for _ in opened.run(sequences, progress):
            pass
        outputs = [request_output(sequence, self._model.facts) for sequence in sequences]
        return outputs[0] if single else outputs

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        progress: ProgressCallback | None = None,
        tracer: BlockTracer | None = None,
    ) -> Iterator[StreamChunk]:
        """Answer one prompt piece by piece; the arguments are those of `generate`.

        A `tracer` keeps what the answer's rows saw of the KV cache.

        The request is checked at once and begins with the first chunk that is asked for. Closing
        the iterator ends it and frees what it held. The pieces joined are `generate`'s answer.

        Raises:
            RequestError: The prompt is empty or holds ids the model has not.
            CapacityError: The prompt is longer than the context.
        """
        if not prompts.is_single(prompt):
            raise RequestError("a stream answers one prompt, found a list of prompts")
        (chosen,) = params_for(params, 1)
        return self._chunks(self._opened().sequence(prompt, chosen, tracer), progress)

    @contextmanager
    def replay(self, capacity_tokens: int) -> Iterator[Replay]:
        """Hold KV blocks to read a prompt once and answer it in several attention modes.

        Args:
            capacity_tokens: Tokens of prompt and answer.

        Raises:
            CapacityError: They are more than the context, or too few blocks are free.
        """
        opened = self._opened()
        prompts.check_fits(capacity_tokens, opened.model.context_tokens, answer_tokens=0)
        with opened.core.reserve(capacity_tokens) as reservation:
            yield Replay(opened, reservation)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        progress: ProgressCallback | None = None,
    ) -> RequestOutput: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        progress: ProgressCallback | None = None,
    ) -> Iterator[StreamChunk]: ...

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: bool = False,
        progress: ProgressCallback | None = None,
    ) -> RequestOutput | Iterator[StreamChunk]:
        """Answer a conversation through the model's chat template.

        Text inside messages never becomes a special token.

        Args:
            messages: Mappings with "role" and "content", oldest first.
            params: How to sample.
            stream: Return an iterator of chunks instead of the finished answer.
            progress: Called as the prompt is read.

        Raises:
            RequestError: There are no messages.
            TemplateError: The template refuses them, or the model has none.
            CapacityError: The conversation is longer than the context.
        """
        if not messages:
            raise RequestError("a chat has no messages, expected at least one")
        tokens = self._model.tokenizer.encode_chat(messages)
        if stream:
            return self.stream(tokens, params, progress=progress)
        return self.generate(tokens, params, progress=progress)

    def score(self, token_ids: Sequence[int], *, progress: ProgressCallback | None = None) -> Score:
        """Return what the model expected at each position of a text of n >= 2 tokens.

        Args:
            token_ids: The text, BOS included where the model wants one.
            progress: Called as the text is read.

        Raises:
            RequestError: There are fewer than two tokens, or ids the model has not.
            CapacityError: The text is longer than the context.
            AbortedError: `abort` was called.
        """
        core = self._opened().core
        tokens = prompts.token_ids(token_ids, core.vocab_size)
        if len(tokens) < 2:
            raise RequestError(f"scoring needs at least 2 tokens, found {len(tokens)}")
        prompts.check_fits(len(tokens), self._model.context_tokens, answer_tokens=0)
        reporter = ProgressReporter(progress, len(tokens) - 1)
        return score(core, tokens, reporter.report)

    def abort(self) -> None:
        """End every request of this engine within an op, from any thread or signal handler.

        Answers end with finish reason "abort" and keep what was generated.
        """
        if self._open is not None:
            self._open.core.abort()

    def close(self) -> None:
        """End every request and let go of the model; later calls are refused."""
        if self._open is None:
            return
        self._open.core.close()
        self._open.model.tokenizer.close()
        self._open = None

    def __enter__(self) -> Self:
        """Return the engine itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the engine."""
        self.close()

    def _opened(self) -> OpenEngine:
        if self._open is None:
            raise RequestError("this LLM was closed")
        return self._open

    @property
    def _model(self) -> LoadedModel:
        return self._opened().model

    def _chunks(
        self, sequence: TokenSequence, progress: ProgressCallback | None
    ) -> Iterator[StreamChunk]:
        yield from self._opened().chunks(sequence, progress)
