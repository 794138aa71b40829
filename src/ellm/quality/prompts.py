"""From a document and a question to the tokens of a prompt."""

from __future__ import annotations

from ellm.errors import RequestError
from ellm.quality.interfaces import PromptTokenizer, QualityTokenizer
from ellm.quality.tasks.task import Item

_PROBE = (
    "def needle(n: int) -> str:\n    return f'The 4,096th needle\u2019s value: {n}'  # \u00fc\n"
)


def prompt_tokens(tokenizer: PromptTokenizer, item: Item) -> list[int]:
    """Return the tokens of a prompt that ends with the beginning of its answer.

    Documents come first and the question last, as everywhere in eLLM. The beginning of the answer
    makes small models answer at once and in the form that is looked for.
    """
    if tokenizer.has_chat_template:
        content = f"{item.document}\n\n{item.question}"
        start = tokenizer.encode_chat([{"role": "user", "content": content}])
        return [*start, *tokenizer.encode(item.answer_prefix)]
    text = f"{item.document}\n\nQuestion: {item.question}\nAnswer: {item.answer_prefix}"
    return tokenizer.encode(text, add_bos=tokenizer.add_bos)


def require_same_tokens(reference: QualityTokenizer, candidate: QualityTokenizer) -> None:
    """Check that two models spell texts with the same tokens, so that predictions compare.

    Raises:
        RequestError: They do not.
    """
    if reference.vocab_size != candidate.vocab_size:
        raise RequestError(
            f"the reference has {reference.vocab_size} tokens, the candidate "
            f"{candidate.vocab_size}: only models of the same vocabulary can be compared"
        )
    if reference.encode(_PROBE) != candidate.encode(_PROBE):
        raise RequestError(
            "the reference and the candidate spell the same text with other tokens: only models "
            "of the same vocabulary can be compared"
        )
