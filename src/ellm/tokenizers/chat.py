"""Writes chats with a model's template, and tells the template's control tokens from the users'."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ellm.errors import TemplateError
from ellm.tokenizers.masking import ControlTokens, Mask
from ellm.tokenizers.messages import Message, Plain, map_text, plain_messages, user_strings
from ellm.tokenizers.template_process import TemplateProcess


@dataclass(frozen=True, slots=True)
class WrittenChat:
    """A chat as the template wrote it.

    Attributes:
        text: What the model is to read.
        masked: As long as `text`; the same wherever the template's own words stand, so that every
            control token found here is the template's.
    """

    text: str
    masked: str


class Chat:
    """The chat template of one model."""

    def __init__(
        self, source: str, *, control_pieces: Collection[str], variables: Mapping[str, str]
    ) -> None:
        """Keep the template; it is first compiled when first used.

        Args:
            source: The template.
            control_pieces: Texts of the control tokens.
            variables: What the template may name besides the messages, such as `bos_token`.

        Raises:
            TemplateError: The template is longer than 1 MiB.
        """
        self._source = source
        self._control_pieces = control_pieces
        self._variables = dict(variables)
        self._process = TemplateProcess(source)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return what the template writes.

        Raises:
            RequestError: A message is malformed or holds something other than text.
            TemplateError: The template failed, refused its input, or ran over a limit.
        """
        return self._render(plain_messages(messages), add_generation_prompt=add_generation_prompt)

    def render_safely(
        self, messages: Sequence[Message], *, add_generation_prompt: bool
    ) -> WrittenChat:
        """Return what the template writes, with the users' text marked.

        Messages without any of the signs that control tokens are made of need no marking. Others
        are written twice, once with their characters masked; when both agree, the masked text
        shows whose the control tokens are. When they differ, the template has changed or measured
        the text, and what it wrote cannot be trusted.

        Raises:
            RequestError: A message is malformed or holds something other than text.
            TemplateError: As in `render`, or the two texts differ.
        """
        plain = plain_messages(messages)
        text = self._render(plain, add_generation_prompt=add_generation_prompt)
        strings = list(user_strings(plain))
        if not any(map(self._control.has_marker, strings)):
            return WrittenChat(text, text)
        mask = Mask(
            strings,
            control=self._control,
            template=self._source,
            literals=self._process.literals(),
        )
        hidden = [map_text(message, mask.hide) for message in plain]
        try:
            masked = self._render(hidden, add_generation_prompt=add_generation_prompt)
        except TemplateError as error:
            raise _untraceable() from error
        if mask.show(masked) != text:
            raise _untraceable()
        return WrittenChat(text, masked)

    def close(self) -> None:
        """End the process that renders, if one runs."""
        self._process.close()

    @cached_property
    def _control(self) -> ControlTokens:
        return ControlTokens(self._control_pieces)

    def _render(
        self, messages: Sequence[Mapping[str, Plain]], *, add_generation_prompt: bool
    ) -> str:
        return self._process.render(
            {
                **self._variables,
                "messages": messages,
                "tools": None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
        )


def _untraceable() -> TemplateError:
    return TemplateError(
        "the chat template changes the text of messages in a way that hides which control tokens "
        "are its own, and a message holds signs they are made of (such as '<' or '|'); "
        "take those out, or render the template and encode the text yourself"
    )
