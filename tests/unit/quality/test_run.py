"""A prompt is read once for everybody, whoever is loaded when; a run can be stopped anywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest

from ellm.config.attention import AttentionConfig
from ellm.errors import AbortedError
from ellm.quality.fidelity import FidelityCell, Passage, figures, passages
from ellm.quality.plan import Arm, QualityPlan
from ellm.quality.results import QualityResults, TaskAnswer
from ellm.quality.run import Phase, QualityRun, kept_bytes, phases
from ellm.quality.tasks.haystack import Haystack
from ellm.quality.tasks.registry import TASKS
from ellm.quality.texts import Text
from ellm.quality.work import QualityProgress
from tests.support.fake_replay import FakeReplayEngine
from tests.support.word_tokenizer import WordTokenizer

TEXT = Text("a text", "\n".join(f"line {number} of a long text" for number in range(600)))
HAYSTACKS = [Haystack.from_text(TEXT.name, TEXT.content)]
BOUNDED = Arm("bounded", AttentionConfig(mode="bounded"))
SPARSE = Arm("sparse", AttentionConfig(mode="sparse"))
PLAN = QualityPlan(
    lengths_tokens=(1024,),
    tasks=("single-needle", "multi-value"),
    samples=2,
    tail_tokens=5,
    candidates=(BOUNDED, SPARSE),
)


class Measured:
    """A run over fake engines, one per phase."""

    def __init__(self, plan: QualityPlan = PLAN, *, separate: bool = False, **options) -> None:
        self.tokenizer = WordTokenizer()
        self.passages: list[Passage] = passages(self.tokenizer, [TEXT], plan)[0]
        self.phases = phases(plan.candidates, separate=separate)
        self.steps: list[QualityProgress] = []
        self.engines = [FakeReplayEngine(self.tokenizer, **options) for _ in self.phases]
        self.run = QualityRun(
            plan,
            self.passages,
            HAYSTACKS,
            self.tokenizer,
            phases=self.phases,
            progress=self.steps.append,
        )

    def results(self) -> QualityResults:
        found = QualityResults()
        for engine, phase in zip(self.engines, self.phases, strict=True):
            for result in self.run.measure(engine, phase):
                found.add(result)
        return found


def answers(found: Iterable[TaskAnswer]) -> set[tuple[object, ...]]:
    return {(*answer.item, answer.arm, answer.score, answer.text) for answer in found}


def kl(cells: Iterable[FidelityCell]) -> dict[tuple[str, str], list[float]]:
    return {(cell.text, cell.arm): cell.comparison.kl.tolist() for cell in cells}


def test_a_prompt_is_read_once_and_answered_by_everybody() -> None:
    measured = Measured()
    found = measured.results()
    (engine,) = measured.engines
    passage = ["read", "tail exact", "tail bounded", "tail sparse"]
    item = ["read", "answer exact", "answer bounded", "answer sparse"]
    assert engine.calls == passage * 2 + item * 4 + ["free"]
    assert engine.capacities == [PLAN.context_tokens] == [1024 + 60]
    assert len(found.answers) == 4 * 3
    assert {(cell.blocks_read, cell.blocks_total) for cell in found.cells} == {(3, 10)}
    assert [(cell.text, cell.arm) for cell in found.cells] == [
        ("a text", "bounded"),
        ("a text", "sparse"),
        ("needles", "bounded"),
        ("needles", "sparse"),
    ]


def test_answers_hold_what_pairing_and_reports_need() -> None:
    found = Measured().results().answers
    exact, sparse = found[0], found[2]
    assert (exact.arm, sparse.arm) == ("reference", "sparse")
    assert exact.item == sparse.item == ("single-needle", 1024, 0)
    assert exact.score == 1.0
    assert 970 < exact.prompt_tokens <= 1024
    assert exact.position is not None
    assert (sparse.blocks_read, sparse.blocks_total, sparse.skipped_mass) == (3, 10, 0.05)
    assert found[-1].position is None
    assert (exact.blocks_total, exact.skipped_mass) == (0, 0.0)
    assert all(0.0 <= answer.score <= 1.0 for answer in found)


def test_exact_as_a_candidate_differs_in_nothing() -> None:
    plan = QualityPlan(
        lengths_tokens=(1024,),
        tasks=("hex-copy",),
        samples=1,
        tail_tokens=5,
        candidates=(Arm("exact", AttentionConfig()), SPARSE),
    )
    found = Measured(plan).results()
    exact = figures([cell for cell in found.cells if cell.arm == "exact"])
    sparse = figures([cell for cell in found.cells if cell.arm == "sparse"])
    assert exact is not None
    assert sparse is not None
    assert (exact.mean_kl, exact.max_kl, exact.same_top, exact.nll_change) == (0.0, 0.0, 1.0, 0.0)
    # Even logits with noise of 0.1: KL is half its variance.
    assert sparse.mean_kl == pytest.approx(0.1**2 / 2, rel=0.05)


def test_two_models_one_after_the_other_give_what_one_gives() -> None:
    together, apart = Measured(), Measured(separate=True)
    one, two = together.results(), apart.results()
    assert answers(one.answers) == answers(two.answers)
    assert kl(one.cells) == kl(two.cells)
    first, second = apart.engines
    assert "tail bounded" not in first.calls
    assert "tail exact" not in second.calls


def test_another_model_is_compared_with_the_first_one_s_predictions() -> None:
    measured = Measured(separate=True)
    measured.engines[1].noise = 0.2
    found = figures(measured.results().cells)
    assert found is not None
    assert found.mean_kl == pytest.approx(0.3**2 / 2, rel=0.1)


def test_progress_grows_to_all_of_the_work() -> None:
    for separate in (False, True):
        measured = Measured(separate=separate)
        measured.results()
        shares = [step.done_share for step in measured.steps]
        assert shares == sorted(shares)
        assert 0.0 < shares[0] < 0.5
        assert 0.9 < shares[-1] <= 1.0
        last = measured.steps[-1]
        total = 6 * len(measured.phases)
        assert (last.done_jobs, last.total_jobs) == (total - 1, total)
        assert all(step.seconds_left >= 0 for step in measured.steps)
        texts = [step.what for step in measured.steps]
        assert "a text at 1,024 tokens: reading" in texts
        assert "multi-value at 1,024 tokens, sample 2: sparse" in texts


@pytest.mark.parametrize("call", ["read", "tail sparse", "answer exact"])
def test_a_run_that_is_stopped_keeps_what_it_yielded(call: str) -> None:
    measured = Measured()
    (engine,) = measured.engines
    left = {"read": 4, "tail sparse": 2, "answer exact": 3}

    def stop(found: str) -> None:
        if found == call:
            left[call] -= 1
            if not left[call]:
                thread = threading.Thread(target=measured.run.abort)
                thread.start()
                thread.join()

    engine.on_call = stop
    results = QualityResults()

    def keep_all() -> None:
        for result in measured.run.measure(engine, measured.phases[0]):
            results.add(result)

    with pytest.raises(AbortedError):
        keep_all()
    assert 0 < len(results.cells) + len(results.answers) < 16


def test_a_run_that_was_stopped_before_it_began_reads_nothing() -> None:
    measured = Measured()
    measured.run.abort()
    with pytest.raises(AbortedError):
        measured.results()
    assert measured.engines[0].calls == ["read", "free"]


def test_rows_that_an_engine_writes_again_are_kept_as_they_were() -> None:
    measured = Measured()

    class Reusing(FakeReplayEngine):
        def replay(self, capacity_tokens: int):  # type: ignore[no-untyped-def]
            replay = super().replay(capacity_tokens)
            plain = replay.tail

            def tail(tokens, attention):  # type: ignore[no-untyped-def]
                row = np.empty(self.tokenizer.vocab_size, np.float32)
                for logits in plain(tokens, attention):
                    row[:] = logits
                    yield row

            replay.tail = tail  # type: ignore[method-assign]
            return replay

    expected = kl(measured.results().cells)
    other = Measured()
    other.engines = [Reusing(other.tokenizer)]
    assert kl(other.results().cells) == expected


def test_phases_are_one_model_or_two() -> None:
    (only,) = phases((SPARSE,), separate=False)
    assert [arm.name for arm in only.arms] == ["reference", "sparse"]
    first, second = phases((SPARSE,), separate=True)
    assert [arm.name for arm in first.arms] == ["reference"]
    assert second == Phase(reference=False, candidates=(SPARSE,))


def test_kept_logits_are_counted() -> None:
    measured = Measured()
    each = 4 * 50_000 * 5
    assert kept_bytes(measured.passages, 50_000, separate=False) == each
    assert kept_bytes(measured.passages, 50_000, separate=True) == 2 * each
    assert kept_bytes([], 50_000, separate=False) == 0


def test_every_task_can_be_run() -> None:
    plan = QualityPlan(
        lengths_tokens=(1024,), tasks=tuple(TASKS), samples=1, fidelity=False, candidates=(SPARSE,)
    )
    measured = Measured(plan)
    measured.run = QualityRun(
        plan, [], HAYSTACKS, measured.tokenizer, phases=measured.phases, progress=lambda _: None
    )
    found = measured.results().answers
    assert [answer.score for answer in found if answer.arm == "reference"] == [1.0] * len(TASKS)
