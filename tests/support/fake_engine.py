"""An `LLM` over the fake executor, and the prompts that its tests use."""

from ellm import LLM, SamplingParams
from tests.support.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.support.fake_executor import FakeExecutor
from tests.support.tiny_models import tiny_config

TOKENIZER = byte_tokenizer()
CONFIG = tiny_config("llama", vocab_size=VOCAB_SIZE, context_length=512)
PROMPT = list(b"What does the contract say?")
PROMPTS = [list(text) for text in (b"a", b"termination", b"x" * 130, b"liability of the parties")]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


def make(executor=None, *, tokenizer=TOKENIZER, **options):
    executor = executor or FakeExecutor()
    return LLM.from_parts(executor, tokenizer, CONFIG, **options)


def free_blocks(llm):
    return llm._open.core.pool.num_free
