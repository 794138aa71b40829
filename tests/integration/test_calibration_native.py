"""A calibration of a tiny model: its figures are those of the mode that uses what it found."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ellm import LLM, SamplingParams
from ellm.calibration.parts import PartFiles
from ellm.calibration.plan import MASSES, CalibrationPlan
from ellm.calibration.run import CalibratedModel, Calibration, CalibrationRun
from ellm.calibration.shape import Shape
from ellm.calibration.texts import CalibrationTexts, calibration_texts
from ellm.config.attention import EXACT, AttentionConfig
from ellm.engine.opening import OpenedModel, open_model
from ellm.errors import AbortedError
from ellm.program.executor import HeadFactors
from ellm.quality.divergence import compare
from ellm.quality.texts import Text
from ellm.quality.work import QualityProgress
from ellm.sparse.profile import SparseProfile, save_profile
from tests.support.tiny_gguf import tiny_gguf

PLAN = CalibrationPlan(length_tokens=1536, tail_tokens=12, max_kl=0.01)
TEXT = Text("lines", "\n".join(f"line {n} of a text, {n * n % 97}" for n in range(600)))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELLM_CACHE", str(path))
        yield path


@pytest.fixture(scope="module")
def opened(cache: Path) -> OpenedModel:
    path = cache / "tiny.gguf"
    tiny = tiny_gguf("llama", ("q8_0",), context_length=2048, num_layers=2, sharpness=8)
    path.write_bytes(tiny.build())
    return open_model(str(path))


@pytest.fixture(scope="module")
def texts(opened: OpenedModel) -> CalibrationTexts:
    return calibration_texts(opened.tokenizer, [TEXT], PLAN)


class Calibrating:
    """Runs of one calibration, one after the other."""

    def __init__(self, opened: OpenedModel, texts: CalibrationTexts) -> None:
        self.texts = texts
        self.opened = opened
        self.model = CalibratedModel(
            fingerprint=opened.file.fingerprint,
            shape=Shape.of(opened.program),
            context_length=opened.config.context_length,
        )
        self.parts = PartFiles(self.model.fingerprint, PLAN, self.model.shape, texts)

    def run(self, stop_after: int | None = None) -> Calibration:
        def progress(step: QualityProgress) -> None:
            if step.done_jobs == stop_after and "reading" not in step.what:
                run.abort()

        kept, note = self.parts.load()
        assert note is None
        ticks = itertools.count()
        run = CalibrationRun(
            PLAN,
            self.texts,
            self.model,
            parts=self.parts,
            kept=kept,
            progress=progress,
            clock=lambda: float(next(ticks)),
        )
        with LLM(self.opened, threads=1, context_tokens=PLAN.context_tokens) as llm:
            (found,) = run.results(llm)
        return found


@pytest.fixture(scope="module")
def undisturbed(opened: OpenedModel, texts: CalibrationTexts) -> Calibration:
    calibrating = Calibrating(opened, texts)
    found = calibrating.run()
    calibrating.parts.delete()
    return found


def test_what_was_found_is_in_range_and_differs_between_heads(undisturbed: Calibration) -> None:
    profile = undisturbed.profile
    assert profile.mass in MASSES
    assert (undisturbed.learnt_met, undisturbed.checked_met) == (True, True)
    assert [found.text for found in profile.held_out] == ["needles", "lines"]
    for found in profile.held_out:
        assert found.positions == 12
        assert 0 < found.mean_kl <= 0.01
        assert 0.3 < found.blocks_read_share < 1
    scales = profile.heads.scales
    assert scales.shape == (2, 6)
    assert 0 < np.abs(np.log(scales)).max() < np.log(4)
    # Steps of one second each: nothing to gain.
    assert profile.sparse_from_tokens == 2048


@pytest.mark.parametrize("stop_after", [0, 1, 2, 3])
def test_a_run_that_was_stopped_and_gone_on_with_finds_the_same(
    opened: OpenedModel, texts: CalibrationTexts, undisturbed: Calibration, stop_after: int
) -> None:
    calibrating = Calibrating(opened, texts)
    with pytest.raises(AbortedError):
        calibrating.run(stop_after)
    assert calibrating.parts.load()[0].num_texts == stop_after
    assert written(calibrating.run().profile) == written(undisturbed.profile)
    calibrating.parts.delete()


def written(profile: SparseProfile) -> bytes:
    path = save_profile(profile)
    data = path.read_bytes()
    path.unlink()
    return data


@pytest.fixture
def saved(undisturbed: Calibration) -> Iterator[SparseProfile]:
    path = save_profile(undisturbed.profile)
    yield undisturbed.profile
    path.unlink()


def test_the_figures_are_those_that_sparse_attention_has_afterwards(
    opened: OpenedModel, texts: CalibrationTexts, saved: SparseProfile
) -> None:
    with LLM(opened, threads=1, context_tokens=PLAN.context_tokens) as llm:
        assert llm.attention.profile is not None
        assert llm.attention.profile.held_out == saved.held_out
        with llm.replay(PLAN.context_tokens) as replay:
            for passage, found in zip(texts.held_out, saved.held_out, strict=True):
                replay.read(passage.prompt)
                exact = list(replay.tail(passage.tail, EXACT))
                sparse = replay.tail(passage.tail, AttentionConfig(mode="sparse"))
                comparison = compare(exact, sparse, passage.following)
                assert comparison.kl.mean() == found.mean_kl
                totals = replay.totals
                assert totals.blocks_read / totals.blocks_total == found.blocks_read_share


def blocks_read(opened: OpenedModel, mode: str, prompt: list[int]) -> tuple[int, int]:
    with LLM(opened, threads=1, context_tokens=1600, attention=mode) as llm:
        stats = llm.generate(prompt, SamplingParams(max_tokens=4, ignore_eos=True)).stats
    return stats.kv_blocks_read, stats.kv_blocks_total


def test_a_profile_is_used_by_sparse_and_auto_and_by_no_other_mode(
    opened: OpenedModel, texts: CalibrationTexts
) -> None:
    prompt = list(texts.held_out[1].prompt)
    before = {mode: blocks_read(opened, mode, prompt) for mode in ("bounded", "sparse", "auto")}
    # Three rows, 4 KV heads, 24 stored blocks.
    assert before["auto"] == (3 * 4 * 24, 3 * 4 * 24)
    windows = HeadFactors(np.full((2, 2), np.inf, np.float32), np.ones((2, 6), np.float32))
    path = save_profile(
        SparseProfile(
            fingerprint=opened.file.fingerprint,
            mass=0.9,
            sparse_from_tokens=1024,
            heads=windows,
            max_kl=1.0,
            held_out=(),
        )
    )
    try:
        after = {mode: blocks_read(opened, mode, prompt) for mode in before}
    finally:
        path.unlink()
    # Nine blocks are always read.
    assert after["sparse"] == after["auto"] == (3 * 4 * 9, 3 * 4 * 24)
    assert before["sparse"][0] > after["sparse"][0]
    assert after["bounded"] == before["bounded"]
