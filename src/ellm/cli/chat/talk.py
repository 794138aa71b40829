"""A chat: one question after the other, and what that does to the conversation."""

from __future__ import annotations

from collections.abc import Sequence

from ellm.cli.chat.adding import adding_new, pack, require_documents_fit
from ellm.cli.chat.conversation import Conversation
from ellm.cli.chat.figures import short_figures
from ellm.cli.chat.keeping import Keeping
from ellm.cli.chat.model import EngineModel
from ellm.cli.chat.overflow import fit
from ellm.cli.chat.reply import Reply
from ellm.cli.console import Console
from ellm.cli.report import stats_values
from ellm.units import count_of

_STOPPED = "stopped: what there is of the answer stays in the conversation, /undo takes it back"
_NOT_ASKED = "stopped before the answer began: the question is not part of the conversation"


class Chat:
    """The state of one chat and the steps that change it.

    Attributes:
        console: Where it is shown.
        model: What answers.
        conversation: What was said.
        keeping: Where it is kept.
        overflow: What happens when it does not fit; one of `overflow.MODES`.
        last: The last reply of this run.
        ended: Whether the user wants to leave.
    """

    def __init__(
        self,
        console: Console,
        model: EngineModel,
        keeping: Keeping,
        conversation: Conversation,
        *,
        overflow: str,
        with_figures: bool,
        model_name: str,
    ) -> None:
        """Go on with `conversation`.

        Args:
            console: Where it is shown.
            model: What answers.
            keeping: Where the conversation is kept.
            conversation: What was said so far.
            overflow: What happens when it does not fit.
            with_figures: Show a line of figures after each answer.
            model_name: Name of the model's file, for JSON.
        """
        self.console = console
        self.model = model
        self.keeping = keeping
        self.conversation = conversation
        self.overflow = overflow
        self.last: Reply | None = None
        self.ended = False
        self._with_figures = with_figures
        self._model_name = model_name

    def ask(self, question: str) -> Reply:
        """Answer a question; it becomes part of the conversation with what there is of the answer.

        Raises:
            CapacityError: It does not fit.
            EllmError: The engine failed, or the session cannot be written.
        """
        self.conversation = fit(
            self.overflow,
            self.conversation,
            question,
            self.model.room,
            model=self.model,
            tell=self.console.warn,
        )
        reply = self.model.reply(self.conversation.messages(question))
        self.last = reply
        self._show_end(reply)
        if not reply.text and reply.finish_reason == "abort":
            self.console.note(_NOT_ASKED)
            return reply
        self.change(self.conversation.answered(question, reply.text, reply.finish_reason))
        return reply

    def add_files(self, paths: Sequence[str]) -> None:
        """Add files to the conversation; they go with the next question.

        Raises:
            EllmError: There is nothing to read in them, or it does not fit.
        """
        packed = pack(self.console, paths)
        changed = adding_new(self.console, self.conversation, packed)
        require_documents_fit(self.model.tokenizer, changed, self.model.room)
        if changed != self.conversation:
            self.change(changed)

    def change(self, conversation: Conversation) -> None:
        """Go on with another conversation, which is kept first where this one is.

        Raises:
            EllmError: The session cannot be written; the chat goes on with it all the same.
        """
        self.conversation = conversation
        self.keeping.save(conversation, self.used_tokens())

    def used_tokens(self) -> int:
        """Return the tokens of the context that the conversation takes."""
        if self.conversation.kept or self.conversation.summary is not None:
            return self.model.count(self.conversation.messages())
        if self.conversation.documents:
            return self.model.count(self.conversation.messages(""))
        return 0

    def tell(self, command: str, text: str) -> None:
        """Show what a command found."""
        if self.console.as_json:
            self.console.result_object({"command": command, "text": text})
        else:
            self.console.answer(f"{text}\n")

    def _show_end(self, reply: Reply) -> None:
        if self.console.as_json:
            self.console.result_object(
                {
                    "text": reply.text,
                    "finish_reason": reply.finish_reason,
                    "model": self._model_name,
                    "session": self.keeping.name,
                    "stats": None if reply.stats is None else stats_values(reply.stats),
                }
            )
            return
        self.console.answer("" if reply.text.endswith("\n") else "\n")
        if reply.finish_reason == "length":
            cut = count_of(self.model.room.answer_tokens, "token")
            self.console.note(f"the answer was cut after {cut}; -n allows more")
        elif reply.finish_reason == "abort" and reply.text:
            self.console.note(_STOPPED)
        if self._with_figures and reply.stats is not None:
            self.console.note(short_figures(reply.stats, self.model.room.context_tokens))
