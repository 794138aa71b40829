"""Documents for a chat: packed as `ellm ask` packs them, and told."""

from __future__ import annotations

from collections.abc import Sequence

from ellm.cli.chat.conversation import Conversation
from ellm.cli.chat.overflow import Room, never_fits
from ellm.cli.console import Console
from ellm.cli.documents import STANDARD_INPUT, Document
from ellm.cli.packing import pack_and_tell
from ellm.cli.prompts import PromptTokenizer, question_prompt
from ellm.errors import ConfigError


def pack(console: Console, paths: Sequence[str]) -> list[Document]:
    """Return the documents that paths name or contain, at least one, and tell what was read.

    Raises:
        ConfigError: A path does not exist, or is standard input.
        RequestError: There is nothing to read.
        CapacityError: There is more text than any context holds.
    """
    if STANDARD_INPUT in paths:
        raise ConfigError("standard input has the messages of a chat, it cannot be a document, too")
    return pack_and_tell(console, paths).documents


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
