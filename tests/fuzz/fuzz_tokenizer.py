"""Mutates tokenizer metadata for a while; only `EllmError` may come out of the builder.

Usage:
    python tests/fuzz/fuzz_tokenizer.py [--seconds 60] [--seed N]

What can be built must also work: texts are encoded to ids of the vocabulary, never to control
tokens, and back. Every case has a seed of its own; a failure prints it, and `--seed` repeats it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import numpy as np  # noqa: E402

from ellm.errors import EllmError  # noqa: E402
from ellm.tokenizers import StreamDecoder, Tokenizer  # noqa: E402
from ellm.tokenizers.pretokenizers import PRE_TOKENIZERS  # noqa: E402
from tests.support.tiny_vocabularies import byte_level, sentencepiece  # noqa: E402

Metadata = dict[str, Any]

STRINGS = ["", " ", "a", "h e", "<s>", "<0x41>", "<0xZZ>", "\u2581", "\u2581\u2581", "\0", "\n"]
STRINGS += ["\ud800", "\U0001f600", "hell", "\u0120", "x" * 5000, "llama", "gpt2", "<|im_end|>"]
NUMBERS: list[Any] = [0, 1, -1, 3, 6, 7, 255, 2**31, 2**32 - 1, 2**63, 2**64, 2**200, True, False]
NUMBERS += [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e308, -1e30, 5e-324]
OTHERS: list[Any] = [None, b"x", [], {}, [[]], [None], ["a"], (), object(), 1j, range(3)]
OTHERS += [np.arange(3), np.zeros((2, 2)), np.array("x"), np.float32(1), np.uint8(3), np.array([])]
KEYS = ["model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id"]
KEYS += ["eot_token_id", "unknown_token_id", "padding_token_id", "add_bos_token"]
KEYS += ["add_space_prefix", "x_token_id"]
TEXTS = ["", "hello world 123", "<s>a<|im_end|></s>\n\n", " \u2581ab  ab", "\u00e9\U0001f600\0"]


def any_value(rng: random.Random) -> Any:
    pool = rng.choice([STRINGS, NUMBERS, OTHERS])
    return rng.choice(pool)


def seed_metadata(rng: random.Random) -> Metadata:
    if rng.random() < 0.5:
        return byte_level(pre=rng.choice(list(PRE_TOKENIZERS)))
    return sentencepiece(space_prefix=rng.random() < 0.5)


def replace_value(rng: random.Random, metadata: Metadata) -> None:
    metadata["tokenizer.ggml." + rng.choice(KEYS)] = any_value(rng)


def delete_key(rng: random.Random, metadata: Metadata) -> None:
    metadata.pop("tokenizer.ggml." + rng.choice(KEYS), None)


def swap_values(rng: random.Random, metadata: Metadata) -> None:
    left, right = ("tokenizer.ggml." + rng.choice(KEYS) for _ in range(2))
    metadata[left], metadata[right] = metadata.get(right), metadata.get(left)


def change_list(rng: random.Random, metadata: Metadata) -> None:
    keys = [key for key, value in metadata.items() if isinstance(value, list) and value]
    if not keys:
        return
    key = rng.choice(keys)
    values = list(metadata[key])
    for _ in range(rng.choice([1, 1, 2, 20])):
        index = rng.randrange(len(values))
        change = rng.randrange(6)
        if change == 0:
            values[index] = any_value(rng)
        elif change == 1:
            values.insert(index, rng.choice(values))
        elif change == 2 and len(values) > 1:
            del values[index]
        elif change == 3:
            values[index] = rng.choice(values)
        elif change == 4:
            other = rng.randrange(len(values))
            values[index], values[other] = values[other], values[index]
        else:
            values[index] = similar(rng, values[index], values)
    metadata[key] = values


def similar(rng: random.Random, value: Any, values: list[Any]) -> Any:
    """Return a valid-looking neighbour: these reach the code behind the checks."""
    if isinstance(value, str):
        other = rng.choice(values)
        return value + other if isinstance(other, str) else value[:-1]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return rng.choice([value + 1, value - 1, -value, 3, 4, 6])
    return value


def use_array(rng: random.Random, metadata: Metadata) -> None:
    key = "tokenizer.ggml." + rng.choice(["token_type", "scores", "tokens"])
    try:
        with np.errstate(all="ignore"):
            metadata[key] = np.asarray(
                metadata.get(key), rng.choice([None, "i4", "u1", "f4", "f8"])
            )
    except (TypeError, ValueError, OverflowError):
        return


def grow(rng: random.Random, metadata: Metadata) -> None:
    """Add a token, its type and its score together, so that the vocabulary stays consistent."""
    prefix = "tokenizer.ggml."
    tokens = metadata.get(prefix + "tokens")
    types = metadata.get(prefix + "token_type")
    if not isinstance(tokens, list) or not isinstance(types, list) or not tokens:
        return
    left, right = rng.choice(tokens), rng.choice(tokens)
    piece = str(left) + str(right)
    metadata[prefix + "tokens"] = [*tokens, piece]
    metadata[prefix + "token_type"] = [*types, rng.choice([0, 1, 2, 3, 3, 3, 4, 5, 6])]
    if isinstance(metadata.get(prefix + "scores"), list):
        metadata[prefix + "scores"] = [*metadata[prefix + "scores"], rng.choice([-1.0, 0.0, 9.0])]
    if isinstance(metadata.get(prefix + "merges"), list):
        metadata[prefix + "merges"] = [*metadata[prefix + "merges"], f"{left} {right}"]


MUTATIONS: list[Callable[[random.Random, Metadata], None]] = [
    replace_value,
    delete_key,
    swap_values,
    change_list,
    use_array,
    grow,
]


def run_case(seed: int) -> bool:
    """Build one mutant and use it; return whether it could be built."""
    rng = random.Random(seed)
    metadata = seed_metadata(rng)
    weights = [1, 1, 1, 3, 1, 6]
    for mutate in rng.choices(MUTATIONS, weights, k=rng.choice([1, 1, 2, 3, 8])):
        mutate(rng, metadata)
    try:
        tokenizer = Tokenizer.from_gguf(metadata, path="fuzzed")
        tokenizer.prepare()
    except EllmError:
        return False
    # What the vocabulary itself spells, newest first: that is where a mutated piece is met.
    newest = range(max(0, tokenizer.vocab_size - 12), tokenizer.vocab_size)
    spelt = [tokenizer.decode([i], skip_special=False) for i in reversed(newest)]
    for text in [*TEXTS, *spelt, "".join(rng.choices(spelt, k=5))]:
        use(tokenizer, text)
    return True


def use(tokenizer: Tokenizer, text: str) -> None:
    plain, parsed = tokenizer.encode(text), tokenizer.encode(text, parse_special=True)
    for ids in (plain, parsed):
        if not all(0 <= i < tokenizer.vocab_size for i in ids):
            raise AssertionError(f"ids outside the vocabulary: {ids}")
        stream = StreamDecoder(tokenizer)
        shown = "".join(map(stream.push, ids)) + stream.flush()
        if shown != tokenizer.decode(ids):
            raise AssertionError("the stream differs from the whole")
    hidden = tokenizer.special_ids - {tokenizer.codec.unknown_id}
    if not hidden.isdisjoint(plain):
        raise AssertionError(f"plain text became a control token: {plain}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="run this one case and show its error")
    options = parser.parse_args()
    if options.seed is not None:
        print("built" if run_case(options.seed) else "refused")
        return 0
    first = random.SystemRandom().randrange(2**48)
    built = cases = 0
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        seed = first + cases
        try:
            built += run_case(seed)
        # A panic in the tokenizers library is a BaseException, and just what is sought here.
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            traceback.print_exc()
            print(f"FAILED: repeat with --seed {seed}", file=sys.stderr)
            return 1
        cases += 1
    print(f"{cases} cases, {built} built, {cases - built} refused with an EllmError")
    return 0 if built else 1


if __name__ == "__main__":
    sys.exit(main())
