from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm.cli.chat.conversation import Conversation, Turn
from ellm.cli.chat.overflow import MODES, Room, fit
from ellm.cli.documents import Document
from ellm.errors import CapacityError, EllmError

from .chat_fakes import Messages, contents

words = st.integers(1, 12).map(lambda count: " ".join(["w"] * count))
documents = st.lists(words, max_size=2).map(
    lambda texts: tuple(Document(f"d{n}", text) for n, text in enumerate(texts))
)
turns = st.lists(st.builds(Turn, words, words, st.just("stop"), documents), max_size=12)
conversations = st.builds(
    Conversation, st.none() | words, turns.map(tuple), documents, st.just(0), st.none()
)


class WordModel:
    """A token per word, four per message; sums up in as many words as it may."""

    def __init__(self) -> None:
        self.requests: list[tuple[Messages, int]] = []

    def count(self, messages: Messages) -> int:
        return sum(4 + len(message["content"].split()) for message in messages)

    def sum_up(self, messages: Messages, max_tokens: int) -> str:
        self.requests.append((messages, max_tokens))
        return " ".join(["s"] * max_tokens)


def fitted(
    mode: str, said: Conversation, question: str, room: Room, model: WordModel | None = None
) -> tuple[Conversation, list[str]]:
    notes: list[str] = []
    found = fit(mode, said, question, room, model=model or WordModel(), tell=notes.append)
    return found, notes


@pytest.mark.parametrize("mode", MODES)
@given(said=conversations, question=words)
def test_what_fits_is_left_alone(mode: str, said: Conversation, question: str) -> None:
    tokens = WordModel().count(said.messages(question))
    assert fitted(mode, said, question, Room(tokens + 5, 5)) == (said, [])


@given(said=conversations, question=words, context_tokens=st.integers(20, 400))
def test_drop_oldest_fits_and_keeps_system_documents_and_question(
    said: Conversation, question: str, context_tokens: int
) -> None:
    room = Room(context_tokens, 10)
    try:
        found, notes = fitted("drop-oldest", said, question, room)
    except CapacityError:
        alone = said.leaving_out(len(said.turns))
        assert WordModel().count(alone.messages(question)) > room.prompt_tokens
        return
    messages = found.messages(question)
    assert WordModel().count(messages) <= room.prompt_tokens
    assert messages[0]["content"] == said.system or not said.system
    assert messages[-1]["content"].endswith(question)
    prompt = "\n".join(contents(messages))
    for document in said.documents:
        assert f"=== {document.name} ===\n{document.text}" in prompt
    assert (found.turns, found.waiting) == (said.turns, said.waiting)
    # Whole turns, from the oldest on, and never without a note.
    tail = [(turn.question, turn.answer) for turn in said.turns[found.left_out :]]
    answers = [m["content"] for m in messages if m["role"] == "assistant"]
    assert answers == [answer for _, answer in tail]
    assert bool(notes) == (found != said)


@settings(max_examples=30)
@given(turn_words=st.integers(1, 6), document_words=st.integers(1, 300))
def test_the_beginning_of_the_prompt_stays_for_many_turns(
    turn_words: int, document_words: int
) -> None:
    """Between two cuts the prompt only grows; a cut leaves a quarter of the turns' room free."""
    room = Room(600, 20)
    text = " ".join(["w"] * turn_words)
    said = Conversation(waiting=(Document("d", " ".join(["d"] * document_words)),))
    base = contents(said.messages(text))[0]
    cuts, before = [], 0
    for number in range(200):
        said, _ = fitted("drop-oldest", said, text, room)
        # What was read first is never read again.
        assert contents(said.messages(text))[0] == base
        if said.left_out != before:
            cuts.append(number)
            before = said.left_out
        said = said.answered(text, text, "stop")
    free = room.prompt_tokens - WordModel().count(
        Conversation(waiting=said.documents).messages(text)
    )
    turn_tokens = 2 * (4 + turn_words)
    least = free // 4 // turn_tokens - 1
    assert all(later - sooner >= least for sooner, later in pairwise(cuts))
    assert cuts


@given(said=conversations, question=words, context_tokens=st.integers(20, 600))
def test_a_summary_fits_and_stands_for_what_it_replaces(
    said: Conversation, question: str, context_tokens: int
) -> None:
    room, model = Room(context_tokens, 10), WordModel()
    try:
        found, notes = fitted("summarise", said, question, room, model)
    except CapacityError:
        return
    assert model.count(found.messages(question)) <= room.prompt_tokens
    assert (found.turns, found.waiting) == (said.turns, said.waiting)
    assert len(notes) == 2 * len(model.requests)
    for messages, max_tokens in model.requests:
        assert model.count(messages) + max_tokens <= room.context_tokens
    if model.requests:
        assert found.summary in contents(found.messages(question))


def test_a_second_summary_takes_in_the_first() -> None:
    model, room = WordModel(), Room(400, 20)
    said = Conversation()
    for _ in range(60):
        said, _ = fitted("summarise", said, "w " * 10, room, model)
        said = said.answered("w " * 10, "w " * 10, "stop")
    assert len(model.requests) > 1
    first, later = model.requests[0][0], model.requests[1][0]
    assert "s s s" not in contents(first)[1]
    assert contents(later)[1].startswith("s s s")


@pytest.mark.parametrize("mode", MODES)
def test_what_is_never_left_out_is_an_error_in_every_mode(mode: str) -> None:
    said = Conversation(waiting=(Document("d", "w " * 100),), turns=(Turn("q", "a"),))
    with pytest.raises(CapacityError, match="system message, documents and this question alone"):
        fitted(mode, said, "q", Room(100, 10))


def test_no_room_for_a_summary_names_what_still_works() -> None:
    said = Conversation(waiting=(Document("d", "w " * 60),), turns=(Turn("q " * 20, "a"),))
    with pytest.raises(CapacityError, match=r"no room for a summary.*drop-oldest still works"):
        fitted("summarise", said, "q", Room(110, 10))


def test_a_summary_that_fails_changes_nothing() -> None:
    class Failing(WordModel):
        def sum_up(self, messages: Messages, max_tokens: int) -> str:
            raise EllmError(f"stopped {len(messages)} of {max_tokens}")

    said = Conversation(turns=(Turn("q " * 40, "a " * 40),) * 4)
    with pytest.raises(EllmError, match="stopped"):
        fitted("summarise", said, "q", Room(300, 10), Failing())


@given(said=conversations, left_out=st.integers(0, 12), summary=st.none() | words)
def test_undo_takes_back_what_answered_added(
    said: Conversation, left_out: int, summary: str | None
) -> None:
    said = said.leaving_out(min(left_out, len(said.turns)), summary)
    assert said.answered("q", "a", "stop").undone() == said


@given(said=conversations, left_out=st.integers(0, 12))
def test_undoing_everything_keeps_all_documents(said: Conversation, left_out: int) -> None:
    everything = said.documents
    said = said.leaving_out(min(left_out, len(said.turns)))
    while said.turns:
        said = said.undone()
        assert said.documents == everything
        assert said.left_out <= len(said.turns)
    assert said.left_out == 0
    assert said.cleared() == said


@given(said=conversations)
def test_clearing_keeps_documents_and_system_message(said: Conversation) -> None:
    assert said.cleared() == Conversation(said.system, waiting=said.documents)
