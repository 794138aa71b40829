"""What happens when a conversation no longer fits the context: an error, or less of it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ellm.cli.chat.conversation import Conversation
from ellm.errors import CapacityError
from ellm.units import count_of, format_count

MODES = ("error", "drop-oldest", "summarise")
SUMMARY_REQUEST = (
    "Summarise our conversation so far in a few sentences: what was asked, what was found, names "
    "and numbers included. The summary takes the place of what was said."
)

# What is left out changes the prompt behind the documents, and that is read again. So much goes at
# once that a quarter of what turns may take is free: then the prompt only grows for many turns.
_KEPT_SHARE = 0.75
_SUMMARY_TOKENS = 400
_LEAST_SUMMARY_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Room:
    """How much fits.

    Attributes:
        context_tokens: Tokens of prompt and answer.
        answer_tokens: Those of them that are kept for the answer.
    """

    context_tokens: int
    answer_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens that a prompt may have."""
        return self.context_tokens - self.answer_tokens


class ChatModel(Protocol):
    """What this module needs of a model."""

    def count(self, messages: list[dict[str, str]]) -> int:
        """Return the tokens of a conversation."""

    def sum_up(self, messages: list[dict[str, str]], max_tokens: int) -> str:
        """Return the whole answer to a request for a summary."""


@dataclass(frozen=True, slots=True)
class _Overflow:
    """A question that is too much."""

    conversation: Conversation
    question: str
    room: Room
    model: ChatModel
    tell: Callable[[str], None]

    def count(self, conversation: Conversation) -> int:
        return self.model.count(conversation.messages(self.question))

    @property
    def target_tokens(self) -> int:
        """Tokens to go down to.

        Raises:
            CapacityError: What is never left out is too much by itself.
        """
        alone = self.count(self.conversation.leaving_out(len(self.conversation.turns)))
        if alone > self.room.prompt_tokens:
            raise never_fits(alone, self.room)
        return alone + int(_KEPT_SHARE * (self.room.prompt_tokens - alone))

    def least_cut(self, target_tokens: int) -> int:
        """Return the fewest turns to leave out for a prompt of `target_tokens`; at most all."""
        too_few, enough = self.conversation.left_out, len(self.conversation.turns)
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if self.count(self.conversation.leaving_out(middle)) <= target_tokens:
                enough = middle
            else:
                too_few = middle
        return enough


def fit(
    mode: str,
    conversation: Conversation,
    question: str,
    room: Room,
    *,
    model: ChatModel,
    tell: Callable[[str], None],
) -> Conversation:
    """Return a conversation that fits with `question`: as it is, or as `mode` makes it.

    Args:
        mode: One of `MODES`.
        conversation: What was said.
        question: What is asked next.
        room: How much fits.
        model: Counts tokens and sums up.
        tell: Tells the user what is left out; never silenced.

    Raises:
        CapacityError: It does not fit and the mode is "error", or nothing that may be left out is
            enough.
        AbortedError: A summary was stopped.
    """
    tokens = model.count(conversation.messages(question))
    if tokens <= room.prompt_tokens:
        return conversation
    return _WAYS[mode](_Overflow(conversation, question, room, model, tell), tokens)


def never_fits(alone: int, room: Room) -> CapacityError:
    """Return the error for what is never left out, of `alone` tokens."""
    return CapacityError(
        f"system message, documents and this question alone have {count_of(alone, 'token')}, "
        f"{format_count(room.prompt_tokens)} fit (context of {format_count(room.context_tokens)}, "
        f"{format_count(room.answer_tokens)} kept for the answer): ask something shorter, or begin "
        "with fewer documents or a longer context",
        needed=alone + room.answer_tokens,
        available=room.context_tokens,
    )


def _refuse(overflow: _Overflow, tokens: int) -> Conversation:
    _ = overflow.target_tokens  # says so where the other modes could not help
    room = overflow.room
    raise CapacityError(
        f"the conversation has {count_of(tokens, 'token')} with this question, "
        f"{format_count(room.prompt_tokens)} fit (context of {format_count(room.context_tokens)}, "
        f"{format_count(room.answer_tokens)} kept for the answer): nothing was left out; choose "
        "drop-oldest, which leaves out the oldest questions and answers, or summarise, which has "
        "the model sum them up, with --on-overflow or /overflow",
        needed=tokens + room.answer_tokens,
        available=room.context_tokens,
    )


def _drop_oldest(overflow: _Overflow, tokens: int) -> Conversation:
    before = overflow.conversation
    shorter = before.leaving_out(overflow.least_cut(overflow.target_tokens))
    summary = "" if before.summary is None else " and the summary of those before"
    overflow.tell(
        f"the context is full: the model no longer gets the {_oldest(before, shorter)}{summary}; "
        f"{_change(overflow, tokens, shorter)}"
    )
    return shorter


def _summarise(overflow: _Overflow, tokens: int) -> Conversation:
    while tokens > overflow.room.prompt_tokens:
        conversation = _summarise_once(overflow, tokens)
        overflow = replace(overflow, conversation=conversation)
        tokens = overflow.count(conversation)
    return overflow.conversation


def _summarise_once(overflow: _Overflow, tokens: int) -> Conversation:
    before = overflow.conversation
    target = overflow.target_tokens
    nothing = before.leaving_out(len(before.turns), summary="")
    free = overflow.room.prompt_tokens - overflow.count(nothing)
    # A quarter at most: the next summary has to find room beside this one.
    most = min(_SUMMARY_TOKENS, free // 4)
    if most < _LEAST_SUMMARY_TOKENS:
        raise CapacityError(
            f"there is no room for a summary: system message, documents and question leave "
            f"{count_of(max(0, free), 'token')}; drop-oldest still works",
            needed=4 * _LEAST_SUMMARY_TOKENS,
            available=max(0, free),
        )
    cut = _readable(overflow, overflow.least_cut(target - most), most)
    summed_up = before.leaving_out(cut)
    overflow.tell(
        f"the context is full: the model sums up the {_oldest(before, summed_up)}, which takes a "
        "while, and no longer gets them"
    )
    asked = Conversation(before.system, before.turns[:cut], (), before.left_out, before.summary)
    shorter = before.leaving_out(cut, overflow.model.sum_up(asked.messages(SUMMARY_REQUEST), most))
    overflow.tell(f"summed up: {_change(overflow, tokens, shorter)}")
    return shorter


def _readable(overflow: _Overflow, cut: int, summary_tokens: int) -> int:
    """Return how many turns fit into one request for a summary, at most `cut`.

    All do that fitted before; a smaller context than last time, or another model, holds less.
    """
    whole, room = overflow.conversation, overflow.room
    for turns in range(cut, whole.left_out, -1):
        part = Conversation(
            whole.system, whole.turns[:turns], (), whole.left_out, whole.summary
        ).messages(SUMMARY_REQUEST)
        if overflow.model.count(part) + summary_tokens <= room.context_tokens:
            return turns
    raise CapacityError(
        "what was said cannot be summed up any further: the oldest turn does not fit the context "
        "by itself; drop-oldest still works",
        needed=overflow.count(whole),
        available=room.context_tokens,
    )


def _oldest(before: Conversation, after: Conversation) -> str:
    return f"{after.left_out - before.left_out} oldest of {count_of(len(before.kept), 'turn')}"


def _change(overflow: _Overflow, tokens: int, shorter: Conversation) -> str:
    now = overflow.count(shorter)
    return (
        f"{format_count(tokens)} tokens have become {format_count(now)} of "
        f"{format_count(overflow.room.context_tokens)}"
    )


_WAYS: dict[str, Callable[[_Overflow, int], Conversation]] = {
    "error": _refuse,
    "drop-oldest": _drop_oldest,
    "summarise": _summarise,
}
