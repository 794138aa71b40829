"""What an `LLM` holds while it is open, and the loop that answers its requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ellm.config.sampling import SamplingParams
from ellm.engine.core import EngineCore
from ellm.engine.outputs import ProgressCallback, StreamChunk
from ellm.engine.parts import LoadedModel
from ellm.engine.progress import ProgressReporter
from ellm.engine.prompts import encode_prompt
from ellm.engine.requests import ChunkCursor, new_sequence
from ellm.engine.sequence import Sequence
from ellm.sparse.policy import AttentionPolicy
from ellm.sparse.tracing import BlockTracer


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """What closing lets go of."""

    model: LoadedModel
    core: EngineCore
    attention: AttentionPolicy

    def sequence(
        self, prompt: object, params: SamplingParams, tracer: BlockTracer | None = None
    ) -> Sequence:
        """Return a sequence for one prompt.

        Raises:
            RequestError: The prompt is empty or holds ids the model has not.
            CapacityError: The prompt is longer than the context.
        """
        vocab_size = self.core.vocab_size
        tokens = encode_prompt(prompt, self.model.tokenizer, vocab_size)
        return new_sequence(
            tokens,
            params,
            self.model,
            vocab_size=vocab_size,
            attention=self.attention,
            tracer=tracer,
            chains=self.core.open_chains(params.chain_length),
        )

    def run(self, sequences: list[Sequence], progress: ProgressCallback | None) -> Iterator[None]:
        """Step until all of `sequences` are finished, yielding after each step."""
        core = self.core
        reporter = ProgressReporter(progress, sum(len(item.prompt) for item in sequences))
        try:
            core.submit(sequences)
            while not all(sequence.finished for sequence in sequences):
                core.step()
                _raise_error_of(sequences)
                reporter.report(
                    sum(item.read_prompt_tokens for item in sequences),
                    known_tokens=sum(item.reuse.known_tokens for item in sequences),
                )
                yield
            _raise_error_of(sequences)  # of a step that another caller ran
        finally:
            core.remove(sequences)

    def chunks(
        self, sequence: Sequence, progress: ProgressCallback | None
    ) -> Iterator[StreamChunk]:
        """Step until `sequence` is finished, yielding what is new."""
        cursor = ChunkCursor(sequence, self.model.facts)
        for _ in self.run([sequence], progress):
            if chunk := cursor.next_chunk():
                yield chunk
        # Another caller's step may have ended the answer while this one was not asked for more.
        if chunk := cursor.next_chunk():
            yield chunk


def _raise_error_of(sequences: Iterable[Sequence]) -> None:
    for sequence in sequences:
        if sequence.error is not None:
            raise sequence.error
