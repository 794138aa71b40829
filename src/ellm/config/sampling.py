"""Sampling parameters of one request, checked once when they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from ellm.config.bounds import MAX_TOKENS, check_boolean, check_integer, check_number, refuse
from ellm.config.speculation import MAX_CHAIN_TOKENS

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_LOGPROBS = 20
MAX_SALT_CHARACTERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when the answer ends; every field is checked on construction.

    The default is greedy: an answer about a document should be the same every time it is asked
    for. (vLLM's default temperature of 1.0 and llama.cpp's 0.8 were rejected for that reason.)

    Attributes:
        max_tokens: Most tokens to generate; None continues until the context is full.
        temperature: Divides the logits that are left before the draw; 0 takes the largest logit,
            the lowest id on ties.
        top_k: Keep the k largest logits; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens whose probability reaches this share.
        min_p: Keep tokens at least this share as likely as the most likely one.
        repetition_penalty: Divides positive and multiplies negative logits of every token in the
            last `repetition_window_tokens` of prompt and answer; 1 changes nothing.
        repetition_window_tokens: Reach of `repetition_penalty`; None is everything (vLLM's
            meaning), the default is llama.cpp's 64.
        presence_penalty: Subtracted once from tokens that are in the answer so far.
        frequency_penalty: Subtracted per occurrence from tokens that are in the answer so far.
        logit_bias: Added to the logits of these token ids, after the penalties.
        seed: Seed of the request's own generator; None draws a fresh one.
        stop: Strings that end the answer; the text ends before the one found.
        stop_token_ids: Tokens that end the answer, beside the model's own end of turn.
        ignore_eos: Go on past the model's end of turn.
        min_tokens: Tokens to generate before the answer may end by token or stop string.
        logprobs: Log-probabilities of the chosen token and of this many most likely ones, of the
            unmodified logits; None records none.
        chain_length: Most guesses per step, at most what the engine makes; 0 makes none, None is
            the engine's. The answer is the same.
        cache_salt: Requests share what was read before only with the same salt; give each tenant
            one. The answer is the same, but how soon it comes tells whether a text is known.

    Raises:
        ConfigError: A value cannot work; the message names field, value and what is allowed.
    """

    max_tokens: int | None = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window_tokens: int | None = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    chain_length: int | None = None
    cache_salt: str = ""

    def __post_init__(self) -> None:
        """Check every field; `stop`, `stop_token_ids` and `logit_bias` become immutable copies."""
        self._check_length()
        self._check_filters()
        self._check_penalties()
        if self.seed is not None:
            check_integer("seed", self.seed, minimum=0, maximum=2**63 - 1)
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, minimum=0, maximum=MAX_LOGPROBS)
        if self.chain_length is not None:
            check_integer("chain_length", self.chain_length, minimum=0, maximum=MAX_CHAIN_TOKENS)
        if not isinstance(self.cache_salt, str) or len(self.cache_salt) > MAX_SALT_CHARACTERS:
            refuse("cache_salt", self.cache_salt, f"at most {MAX_SALT_CHARACTERS} characters")
        object.__setattr__(self, "stop", _checked_stop(self.stop))
        object.__setattr__(self, "stop_token_ids", _checked_stop_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle by value: the read-only view of `logit_bias` cannot be pickled."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["logit_bias"] = dict(self.logit_bias)
        return _rebuild, (values,)

    def _check_length(self) -> None:
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, minimum=1, maximum=MAX_TOKENS)
        most = MAX_TOKENS if self.max_tokens is None else self.max_tokens
        check_boolean("ignore_eos", self.ignore_eos)
        check_integer("min_tokens", self.min_tokens, minimum=0, maximum=MAX_TOKENS)
        if self.min_tokens > most:
            refuse("min_tokens", self.min_tokens, f"at most max_tokens, which is {most}")

    def _check_filters(self) -> None:
        self._check_number("temperature", 0.0, 100.0)
        check_integer("top_k", self.top_k, minimum=0, maximum=MAX_TOKENS)
        self._check_number("top_p", 0.0, 1.0, above=True)
        self._check_number("min_p", 0.0, 1.0)

    def _check_penalties(self) -> None:
        self._check_number("repetition_penalty", 0.0, 10.0, above=True)
        if self.repetition_window_tokens is not None:
            check_integer(
                "repetition_window_tokens",
                self.repetition_window_tokens,
                minimum=1,
                maximum=MAX_TOKENS,
            )
        self._check_number("presence_penalty", -2.0, 2.0)
        self._check_number("frequency_penalty", -2.0, 2.0)

    def _check_number(
        self, name: str, minimum: float, maximum: float, *, above: bool = False
    ) -> None:
        value = check_number(
            name, getattr(self, name), minimum=minimum, maximum=maximum, above=above
        )
        object.__setattr__(self, name, value)


def _rebuild(values: dict[str, object]) -> SamplingParams:
    return SamplingParams(**values)  # type: ignore[arg-type]


def _checked_stop(found: object) -> tuple[str, ...]:
    allowed = (
        f"up to {MAX_STOP_STRINGS} non-empty strings of at most {MAX_STOP_STRING_BYTES} bytes each"
    )
    strings = (found,) if isinstance(found, str) else found
    if not isinstance(strings, list | tuple) or len(strings) > MAX_STOP_STRINGS:
        refuse("stop", found, allowed)
    for string in strings:
        if not isinstance(string, str) or not string:
            refuse("stop", string, allowed)
        if len(string.encode("utf-8", "surrogatepass")) > MAX_STOP_STRING_BYTES:
            refuse("stop", string, allowed)
    return tuple(strings)


def _checked_stop_ids(found: object) -> tuple[int, ...]:
    if not isinstance(found, list | tuple | set | frozenset) or len(found) > MAX_STOP_TOKEN_IDS:
        refuse("stop_token_ids", found, f"a sequence of up to {MAX_STOP_TOKEN_IDS} token ids")
    return tuple(
        check_integer("stop_token_ids", item, minimum=0, maximum=MAX_TOKENS) for item in found
    )


def _checked_bias(found: object) -> Mapping[int, float]:
    if not isinstance(found, Mapping) or len(found) > MAX_LOGIT_BIAS_ENTRIES:
        refuse("logit_bias", found, f"a mapping of up to {MAX_LOGIT_BIAS_ENTRIES} token ids")
    checked = {
        check_integer("logit_bias", token, minimum=0, maximum=MAX_TOKENS): check_number(
            f"logit_bias[{token}]", bias, minimum=-100.0, maximum=100.0
        )
        for token, bias in found.items()
    }
    return MappingProxyType(checked)
