"""Which tokens end a model's turn."""

from __future__ import annotations

from ellm.tokenizers.vocabulary import TokenType, Vocabulary

_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

# Source: llama.cpp `src/llama-vocab.cpp`, the lists behind `special_eog_ids`. Unlike there, a token
# of such a text that the file does not mark as control stays what it is: "</s>" is an HTML tag in
# Gemma's vocabulary, not the end of an answer.
_PIECES = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "</s>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<|fim_pad|>",
        "<fim_pad>",
        "<fim-pad>",
        "<|repo_name|>",
        "<|file_sep|>",
    }
)


def end_of_turn_ids(vocabulary: Vocabulary, eos_id: int | None) -> frozenset[int]:
    """Return the ids after which nothing more belongs to the answer.

    They are `eos_id`, the ids the file names for end of turn or message, and control tokens whose
    text is known to mean that. In a code model that includes the borders of files, which
    end a completion inside a file.
    """
    control = vocabulary.ids_of_type(TokenType.CONTROL)
    found = {i for i in control if vocabulary.pieces[i] in _PIECES}
    found |= {vocabulary.special[role] for role in _ROLES if role in vocabulary.special}
    if eos_id is not None:
        found.add(eos_id)
    texts = {vocabulary.pieces[i]: i for i in found}
    # In OpenAI's harmony format <|end|> only separates the channels of one turn.
    if {"<|return|>", "<|call|>"} <= texts.keys():
        found.discard(texts.get("<|end|>", -1))
    return frozenset(found)
