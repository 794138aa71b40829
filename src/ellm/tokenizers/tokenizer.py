"""The tokenizer of one model: text, tokens and chats, built from GGUF metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ellm.errors import RequestError, TemplateError
from ellm.tokenizers.chat import Chat
from ellm.tokenizers.end_of_turn import end_of_turn_ids
from ellm.tokenizers.messages import Message
from ellm.tokenizers.pretokenizers import pre_tokenizer
from ellm.tokenizers.text_codec import TextCodec
from ellm.tokenizers.vocabulary import Vocabulary, read_vocabulary

# Source: llama.cpp `src/llama-vocab.cpp`; the ids of a SentencePiece model whose file names none.
_SENTENCEPIECE_DEFAULTS = {"unknown": 0, "bos": 1, "eos": 2}


class Tokenizer:
    """Encodes and decodes text, and writes chats as the model was trained to read them.

    Attributes:
        codec: Plain text to ids and back.
        vocab_size: Number of tokens.
        bos_id: Token that starts a text, or None.
        eos_id: Token that ends a text, or None.
        eos_ids: All tokens after which the model has nothing more to say.
        add_bos: Whether a prompt should start with `bos_id`.
        special_ids: Control tokens; decoding leaves them out, text is never encoded to them.
    """

    def __init__(self, vocabulary: Vocabulary, *, path: str = "") -> None:
        """Take a checked vocabulary; its encoder is built by the first text, or by `prepare`.

        Raises:
            InvalidModelError: The vocabulary is inconsistent.
            UnsupportedError: The pre-tokenizer is unknown.
        """
        is_bpe = vocabulary.kind == "gpt2"
        rules = pre_tokenizer(vocabulary.pre, path) if is_bpe else None
        special = dict(vocabulary.special)
        self.vocab_size = len(vocabulary.pieces)
        if not is_bpe:
            for role, token_id in _SENTENCEPIECE_DEFAULTS.items():
                if token_id < self.vocab_size:
                    special.setdefault(role, token_id)
        self.codec = TextCodec(
            vocabulary, rules=rules, unknown_id=special.get("unknown"), path=path
        )
        self.bos_id = special.get("bos")
        self.eos_id = special.get("eos")
        self.eos_ids = end_of_turn_ids(vocabulary, self.eos_id)
        default_add_bos = rules.add_bos if rules else True
        self.add_bos = self.bos_id is not None and vocabulary.flags.get(
            "add_bos_token", default_add_bos
        )
        self.special_ids = self.codec.special_ids
        texts = {role: vocabulary.pieces[token_id] for role, token_id in special.items()}
        self._chat = (
            Chat(
                vocabulary.chat_template,
                control_pieces=self.codec.control_pieces,
                variables={
                    "bos_token": texts.get("bos", ""),
                    "eos_token": texts.get("eos", ""),
                    "unk_token": texts.get("unknown", ""),
                    "pad_token": texts.get("padding", ""),
                },
            )
            if vocabulary.chat_template
            else None
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], *, path: str = "") -> Tokenizer:
        """Build the tokenizer that GGUF metadata describes.

        Args:
            metadata: GGUF metadata; array values are lists or one-dimensional NumPy arrays.
            path: The model file, for messages only.

        Raises:
            InvalidModelError: An entry is missing, of the wrong type, out of range or
                inconsistent with another.
            UnsupportedError: The tokenizer model or the pre-tokenizer is not implemented.
        """
        return cls(read_vocabulary(metadata, path), path=path)

    def prepare(self) -> None:
        """Build the encoder now: a third of a second for 150,000 merges.

        Raises:
            InvalidModelError: A merge does not join two pieces to a third; the first text to be
                encoded would say so otherwise.
        """
        self.codec.prepare()

    @property
    def has_chat_template(self) -> bool:
        """Whether the model says how to write a chat."""
        return self._chat is not None

    def encode(self, text: str, *, parse_special: bool = False, add_bos: bool = False) -> list[int]:
        """Return the token ids of `text`.

        Args:
            text: Any Unicode text.
            parse_special: Read the names of control tokens as those tokens. Without it they are
                plain text, so that a document cannot end its own turn.
            add_bos: Put `bos_id` first.

        Raises:
            RequestError: The text holds a lone surrogate, or there is no BOS token to add.
        """
        ids = self.codec.encode(text, parse_special=parse_special)
        return [self._required_bos(), *ids] if add_bos else ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Raises:
            RequestError: An id is not in the vocabulary.
        """
        return self.codec.decode(ids, skip_special=skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for; of a control token, its name.

        Raises:
            RequestError: There is no such token.
        """
        return self.codec.token_bytes(token_id)

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> str:
        """Write a chat as the model's template has it.

        Args:
            messages: Mappings with "role" and "content"; content is a string, None, or a list of
                parts of type "text".
            add_generation_prompt: End with the start of the assistant's turn.

        Raises:
            RequestError: A message is malformed or holds something other than text.
            TemplateError: The model has no template, or the template failed or ran over a limit.
        """
        return self._required_chat().render(messages, add_generation_prompt=add_generation_prompt)

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Write a chat and encode it: only the template's own control tokens become tokens.

        What `apply_chat_template` returns, encoded with `parse_special`, except that the names of
        control tokens inside messages stay plain text. BOS comes first once where the model
        wants it, whether or not the template writes it.

        Raises:
            RequestError: A message is malformed or holds something other than text.
            TemplateError: As in `apply_chat_template`; also when the template rewrites messages
                in a way that hides which control tokens are its own.
        """
        chat = self._required_chat()
        written = chat.render_safely(messages, add_generation_prompt=add_generation_prompt)
        ids = self.codec.encode_between(written.text, self.codec.find_control(written.masked))
        if self.add_bos and ids[:1] != [self.bos_id]:
            ids.insert(0, self._required_bos())
        return ids

    def close(self) -> None:
        """End the process that renders templates, if one runs; the next chat starts another."""
        if self._chat is not None:
            self._chat.close()

    def _required_bos(self) -> int:
        if self.bos_id is None:
            raise RequestError("add_bos was asked for, but the model has no BOS token")
        return self.bos_id

    def _required_chat(self) -> Chat:
        if self._chat is None:
            raise TemplateError(
                "the model file holds no chat template, so it is likely a base model: "
                "give it plain text to continue (generate), or use an instruction-tuned model"
            )
        return self._chat
