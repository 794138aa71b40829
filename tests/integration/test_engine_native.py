"""The whole way from a model file to answers, on the native core: row invariance bit for bit."""

import os
import signal
import threading
import time

import pytest

from ellm import (
    LLM,
    CapacityError,
    ConfigError,
    InvalidModelError,
    ModelNotFoundError,
    SamplingParams,
    native,
)
from ellm.config.engine import KV_TYPES
from ellm.engine import loading
from ellm.formats.gguf import GgufFile
from ellm.hardware.cpus import thread_limit
from ellm.kv.disk.disk_cache import DiskCache
from ellm.tokenizers import byte_level
from tests.support.tiny_gguf import tiny_gguf

MODELS = {"llama": ("q8_0", "q4_0"), "qwen2": ("q4_1", "f16"), "gemma3": ("q4_k", "q6_k")}
TEXT = "hello and the thing in the will " * 3
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=5, temperature=0.7, seed=3)
LONG_CONTEXT = 1 << 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, formats in MODELS.items():
        (folder / f"{name}.gguf").write_bytes(tiny_gguf(name, formats).build())
    long = tiny_gguf("llama", ("q8_0",), context_length=LONG_CONTEXT)
    (folder / "long.gguf").write_bytes(long.build())
    return folder


@pytest.fixture(autouse=True)
def own_cache(folder, monkeypatch):
    monkeypatch.setenv("ELLM_CACHE", str(folder / "cache"))


def answer(output):
    return output.text, output.token_ids, output.finish_reason, output.logprobs


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", MODELS)
def test_chunks_threads_mapping_and_company_change_no_bit(folder, architecture, kv_type):
    path = str(folder / f"{architecture}.gguf")
    prompts = [TEXT, "hello", TEXT * 3]
    with LLM(path, threads=1, kv_type=kv_type) as llm:
        expected = [answer(llm.generate(prompt, PARAMS)) for prompt in prompts]
        scored = llm.score(llm.tokenizer.encode(TEXT * 3))
    for rows in (1, 7, 64, 512):
        with LLM(path, rows_per_chunk=rows, mmap=rows != 7, kv_type=kv_type) as llm:
            # Twice: the second time blocks are used again that others have left.
            for _ in range(2):
                assert [answer(out) for out in llm.generate(prompts, PARAMS)] == expected
            again = llm.score(llm.tokenizer.encode(TEXT * 3))
            assert (again.top1 == scored.top1).all()
            assert (again.logprob == scored.logprob).all()


def test_half_precision_kv_takes_half_the_memory(folder):
    path = str(folder / "llama.gguf")
    with LLM(path, kv_type="f32") as full, LLM(path, kv_type="f16") as half:
        assert half.facts.kv_bytes * 2 == full.facts.kv_bytes
        tokens = full.tokenizer.encode(TEXT)
        assert (full.score(tokens).logprob != half.score(tokens).logprob).any()


def test_stats_tell_what_was_loaded(folder):
    with LLM(str(folder / "llama.gguf"), context_tokens=100) as llm:
        stats = llm.generate(TEXT, PARAMS).stats
    assert stats.isa in ("scalar", "avx2", "avx512")
    assert stats.threads == thread_limit()
    assert stats.model_load_ms > 0
    assert stats.weights_bytes > 0
    # Layers, blocks, KV heads; per token K and V of D bytes and a scale of V; in whole lines the
    # mean of V as halves, the mean of K and scales.
    assert stats.kv_bytes == 3 * 2 * 2 * (64 * (2 * 16 + 4) + 192)
    assert stats.arena_bytes > 0
    assert stats.bytes_per_token > stats.kv_bytes * stats.prompt_tokens // 128


def test_context_is_that_of_the_model_and_not_more(folder):
    path = str(folder / "llama.gguf")
    with LLM(path) as llm:
        assert llm.context_tokens == llm.config.context_length == 512
        full = llm.generate("hello", SamplingParams(max_tokens=None, ignore_eos=True))
        prompt_tokens = len(llm.tokenizer.encode("hello"))
        assert len(full.token_ids) + prompt_tokens == 512
    with pytest.raises(ConfigError, match="context_tokens is 513; allowed is at most 512"):
        LLM(path, context_tokens=513)


def test_memory_is_counted_before_weights_are_read(folder, monkeypatch):
    path = str(folder / "llama.gguf")
    available = [0]
    monkeypatch.setattr(loading, "available_memory_bytes", lambda: available[0])
    with monkeypatch.context() as patch:
        patch.setattr(GgufFile, "read", lambda *_: pytest.fail("weights were read"))
        with pytest.raises(CapacityError) as caught:
            LLM(path, context_tokens=512)
        needed = caught.value.needed
        available[0] = needed - 1
        with pytest.raises(CapacityError, match=f"needs {needed} bytes .*{needed - 1} bytes"):
            LLM(path, context_tokens=512)
    available[0] = needed
    with LLM(path, context_tokens=512) as llm:
        taken = llm.facts.weights_bytes + llm.facts.kv_bytes + llm.facts.arena_bytes
        # The float forms of blocks that rows are still in, here at most all, are not in kv_bytes.
        floats = native.kv_float_block_bytes((3, 2, 16, "int8")) * (512 // 64)
    assert 0.95 * needed < taken + floats <= needed


def test_default_context_shrinks_to_what_memory_allows(folder, monkeypatch, caplog):
    path = str(folder / "long.gguf")
    with LLM(path, cache_reuse=False) as llm:  # no room for more than a context
        assert llm.context_tokens == LONG_CONTEXT
        needed = llm.facts.weights_bytes + llm.facts.kv_bytes + llm.facts.arena_bytes
    monkeypatch.setattr(loading, "available_memory_bytes", lambda: needed // 2)
    with LLM(path) as llm:
        assert 512 <= llm.context_tokens < LONG_CONTEXT // 2
    assert "context lowered from 65536" in caplog.text


def test_missing_and_damaged_models_are_typed_errors(folder):
    with pytest.raises(ModelNotFoundError):
        LLM(str(folder / "nowhere.gguf"))
    damaged = folder / "damaged.gguf"
    damaged.write_bytes((folder / "llama.gguf").read_bytes()[:-1])
    with pytest.raises(InvalidModelError):
        LLM(str(damaged))


def test_the_first_load_of_a_file_refuses_merges_that_cannot_be_used(folder):
    builder = tiny_gguf("llama", ("q8_0",)).add("tokenizer.ggml.merges", ["h zzz"])
    path = folder / "merges.gguf"
    path.write_bytes(builder.build())
    before = set((folder / "cache").rglob("*.image"))
    with pytest.raises(InvalidModelError, match="merges"):
        LLM(str(path))
    assert set((folder / "cache").rglob("*.image")) == before


def test_later_loads_leave_the_text_encoder_to_the_first_text(folder, monkeypatch):
    path = folder / "encoder.gguf"
    path.write_bytes(tiny_gguf("llama", ("q8_0",), seed=9).build())
    built = []
    build = byte_level.build_byte_level
    monkeypatch.setattr(
        byte_level, "build_byte_level", lambda *args: built.append(args) or build(*args)
    )
    LLM(str(path)).close()
    assert len(built) == 1
    with LLM(str(path)) as llm:
        llm.generate([3, 4, 5], PARAMS)
        assert len(built) == 1
        llm.generate("hello", PARAMS)
        llm.generate("hello", PARAMS)
    assert len(built) == 2


def test_progress_of_loading_and_of_the_prompt_reach_their_ends(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path))
    loaded, read = [], []
    with LLM(
        str(folder / "llama.gguf"),
        rows_per_chunk=16,
        load_progress=lambda done, total: loaded.append((done, total)),
    ) as llm:
        llm.generate(TEXT, PARAMS, progress=read.append)
    assert loaded[-1][0] == loaded[-1][1] > 0
    assert read[-1].done_tokens == read[-1].total_tokens
    assert len(read) > 1


def soon(action, started):
    """Call `action` once the prompt is being read."""

    def run():
        started.wait(30)
        time.sleep(0.02)
        action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_abort_and_interrupt_end_a_long_prompt_and_the_next_answer_is_unchanged(folder):
    with LLM(str(folder / "long.gguf")) as llm:
        expected = answer(llm.generate(TEXT, PARAMS))
        tokens = [5] * (LONG_CONTEXT - 10)
        started = threading.Event()
        thread = soon(llm.abort, started)
        output = llm.generate(tokens, PARAMS, progress=lambda _: started.set())
        thread.join()
        assert (output.finish_reason, output.token_ids) == ("abort", [])
        assert answer(llm.generate(TEXT, PARAMS)) == expected
        started = threading.Event()
        thread = soon(lambda: os.kill(os.getpid(), signal.SIGINT), started)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(tokens, PARAMS, progress=lambda _: started.set())
        thread.join()
        assert answer(llm.generate(TEXT, PARAMS)) == expected


def test_a_cache_directory_that_cannot_be_used_is_told_before_weights_are_read(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(GgufFile, "read", lambda *_: pytest.fail("weights were read"))
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path / "images"))
    with pytest.raises(ConfigError, match="file"):
        LLM(str(folder / "long.gguf"), cache_dir=tmp_path / "file")


def test_a_model_that_cannot_be_loaded_leaves_no_cache_open(folder, tmp_path, monkeypatch):
    def refuse(*_arguments, **_options):
        raise CapacityError("no memory today", needed=2, available=1)

    monkeypatch.setattr(loading, "load_native", refuse)
    with pytest.raises(CapacityError, match="no memory today"):
        LLM(str(folder / "long.gguf"), cache_dir=tmp_path / "kv")
    # tests/conftest.py wants no thread of it to be left; the next process may write.
    with DiskCache.open(
        tmp_path / "kv", fingerprint=bytes(32), block_bytes=64, quota_bytes=1 << 20
    ) as cache:
        assert cache.writable
