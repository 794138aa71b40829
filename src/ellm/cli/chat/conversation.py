"""A conversation about documents: its turns, and the messages that a model gets of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ellm.cli.documents import Document
from ellm.cli.prompts import document_text

SUMMARY_QUESTION = "Summarise our conversation so far."


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer.

    Attributes:
        question: What the user asked.
        answer: What the model said, as far as it came.
        finish_reason: What ended the answer, as in `ellm.RequestOutput`.
        documents: Those that were added since the turn before.
    """

    question: str
    answer: str
    finish_reason: str = "stop"
    documents: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything that was said; never changed, each step makes another.

    Turns that no longer fit the context stay in it: only `messages` leaves them out, and never
    their documents.

    Attributes:
        system: System message, or None.
        turns: Questions and answers, oldest first.
        waiting: Documents that go with the next question.
        left_out: How many of the oldest turns the model does not get.
        summary: What the model gets in their place, or None.
    """

    system: str | None = None
    turns: tuple[Turn, ...] = ()
    waiting: tuple[Document, ...] = ()
    left_out: int = 0
    summary: str | None = None

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents in the order in which they were added."""
        return (*_documents_of(self.turns), *self.waiting)

    @property
    def kept(self) -> tuple[Turn, ...]:
        """The turns that the model gets."""
        return self.turns[self.left_out :]

    def messages(self, question: str | None = None) -> list[dict[str, str]]:
        """Return what the model gets, with `question` as the last message if there is one.

        Documents of turns that are left out move to the first question that is not: the beginning
        of the prompt, system message and documents, stays what it was.
        """
        said = [{"role": "system", "content": self.system}] if self.system else []
        carried = _documents_of(self.turns[: self.left_out])
        turns = self.kept
        if self.summary is not None:
            turns = (Turn(SUMMARY_QUESTION, self.summary), *turns)
        for turn in turns:
            said.append(_user((*carried, *turn.documents), turn.question))
            said.append({"role": "assistant", "content": turn.answer})
            carried = ()
        if question is not None:
            said.append(_user((*carried, *self.waiting), question))
        return said

    def adding(self, documents: Sequence[Document]) -> Conversation:
        """Return the conversation with documents that go with the next question."""
        return replace(self, waiting=(*self.waiting, *documents))

    def answered(self, question: str, answer: str, finish_reason: str) -> Conversation:
        """Return the conversation with one more turn."""
        turn = Turn(question, answer, finish_reason, self.waiting)
        return replace(self, turns=(*self.turns, turn), waiting=())

    def undone(self) -> Conversation:
        """Return the conversation without its last turn; documents of that wait again.

        Where all turns that the model got are taken back, those that were left out come back.
        """
        *turns, last = self.turns
        shorter = replace(self, turns=tuple(turns), waiting=(*last.documents, *self.waiting))
        return shorter if self.kept else replace(shorter, left_out=0, summary=None)

    def cleared(self) -> Conversation:
        """Return the conversation without turns; the documents stay."""
        return Conversation(self.system, waiting=self.documents)

    def leaving_out(self, turns: int, summary: str | None = None) -> Conversation:
        """Return the conversation whose model does not get the oldest turns, but a summary."""
        return replace(self, left_out=turns, summary=summary)


def _documents_of(turns: Sequence[Turn]) -> tuple[Document, ...]:
    return tuple(document for turn in turns for document in turn.documents)


def _user(documents: Sequence[Document], question: str) -> dict[str, str]:
    # The words of `ellm ask`: what one of them has read, the other need not read again.
    packed = f"{document_text(documents)}\n\nUse the documents above to answer this question: "
    return {"role": "user", "content": f"{packed if documents else ''}{question}"}
