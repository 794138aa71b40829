"""Documents for a chat: packed as `ellm ask` packs them, and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ellm.cli.chat.conversation import Conversation
from ellm.cli.chat.overflow import Room, never_fits
from ellm.cli.console import Console
from ellm.cli.documents import STANDARD_INPUT, Document, Skipped, pack_documents
from ellm.cli.prompts import PromptTokenizer, question_prompt
from ellm.errors import ConfigError, RequestError
from ellm.units import count_of

_SHOWN_NAMES = 3


def pack(console: Console, paths: Sequence[str]) -> list[Document]:
    """Return the documents that paths name or contain, at least one, and tell what was read.

    Raises:
        ConfigError: A path does not exist, or is standard input.
        RequestError: There is nothing to read.
        CapacityError: There is more text than any context holds.
    """
    if STANDARD_INPUT in paths:
        raise ConfigError("standard input has the messages of a chat, it cannot be a document, too")
    packing = pack_documents(paths)
    for item in packing.skipped:
        if item.asked_for:
            console.warn(f"{item.name} was not read: {item.reason}")
    for document in packing.documents:
        encoding = f" (read as {document.encoding})" if document.encoding else ""
        console.note(f"+ {document.name}{encoding}, {count_of(len(document.text), 'character')}")
    found = [item for item in packing.skipped if not item.asked_for]
    if found:
        console.note(f"- {count_of(len(found), 'entry', 'entries')} skipped: {_reasons(found)}")
    if not packing.documents:
        raise RequestError(f"nothing to read in {', '.join(paths)}: {_reasons(packing.skipped)}")
    return packing.documents


def adding_new(
    console: Console, conversation: Conversation, packed: Sequence[Document]
) -> Conversation:
    """Return the conversation with those documents that are not in it yet, the others are told."""
    known = {(item.name, item.text) for item in conversation.documents}
    new = [item for item in packed if (item.name, item.text) not in known]
    for item in packed:
        if item not in new:
            console.note(f"{item.name} is in the conversation already")
    return conversation.adding(new)


def require_documents_fit(
    tokenizer: PromptTokenizer, conversation: Conversation, room: Room
) -> None:
    """Check that a question about all documents fits where nothing else was said.

    Raises:
        CapacityError: It does not.
    """
    if not conversation.documents:
        return
    # Not `messages("")`, which is the same text: this one does not count what is hopelessly long.
    prompt = question_prompt(
        tokenizer,
        conversation.documents,
        "",
        system=conversation.system,
        context_length=room.context_tokens,
    )
    if len(prompt) > room.prompt_tokens:
        raise never_fits(len(prompt), room)


def _reasons(skipped: list[Skipped]) -> str:
    """Return how often each reason occurred, with the first names."""
    if not skipped:
        return "there is no file"
    told = []
    for reason, count in Counter(item.reason for item in skipped).most_common():
        names = [item.name for item in skipped if item.reason == reason]
        more = ", ..." if count > _SHOWN_NAMES else ""
        told.append(f"{count} {reason} ({', '.join(names[:_SHOWN_NAMES])}{more})")
    return "; ".join(told)
