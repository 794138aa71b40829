"""How text is cut before byte-level BPE merges run, by the name a GGUF file gives in `pre`.

A wrong cut gives plausible but wrong ids, so an unknown name is refused, never guessed.
Each pattern cuts the pieces left by the one before it; what no pattern matches stays a piece.

Source: llama.cpp `src/llama-vocab.cpp` for names and patterns; where it only approximates a
model's own `tokenizer.json` (tekken, gpt-4o), the model's own pattern is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from ellm.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rules behind one name.

    Attributes:
        patterns: Oniguruma patterns, applied one after the other.
        ignore_merges: A cut that is a token as a whole is taken without running merges.
        add_bos: Whether a prompt starts with the BOS token when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS_TO_END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS_TO_END}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS_TO_END}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_CASED_LEAD}{_UPPER}*{_LOWER}+|{_CASED_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_TAIL}"
_GPT4O = (
    rf"{_CASED_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|{_CASED_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_GPT2_RULES = PreTokenizer((_GPT2,))
_DIGITS_GPT2_RULES = PreTokenizer((r"\p{N}", _GPT2))
_QWEN2_RULES = PreTokenizer((_QWEN2,))
_LLAMA3_RULES = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_LLAMA3_PLAIN_RULES = PreTokenizer((_LLAMA3,))
_GPT4O_RULES = PreTokenizer((_GPT4O,))
_DEEPSEEK3_RULES = PreTokenizer(
    (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "trillion"), _GPT2_RULES),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _DIGITS_GPT2_RULES,
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2"), _QWEN2_RULES
    ),
    "qwen35": PreTokenizer((_QWEN35,)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"), _LLAMA3_RULES),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _LLAMA3_PLAIN_RULES),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O_RULES),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3_RULES),
}


def pre_tokenizer(name: str, path: str) -> PreTokenizer:
    """Return the rules called `name`.

    Raises:
        UnsupportedError: No such rules are known; the message lists those that are.
    """
    if name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    what = f"pre-tokenizer {name[:64]!r}" if name else "no pre-tokenizer (tokenizer.ggml.pre)"
    raise UnsupportedError(
        f"{path or 'model data'}: the file names {what}; eLLM does not guess how to cut text. "
        f"Known are {', '.join(sorted(PRE_TOKENIZERS))}"
    )
