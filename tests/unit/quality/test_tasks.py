"""Every task: the same items every time, as long as asked, answered by what the document says."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from ellm.errors import ConfigError
from ellm.quality.items import ItemKey, check_lengths, item_keys, make_prompt
from ellm.quality.plan import MAX_ANSWER_TOKENS, REFERENCE, QualityPlan
from ellm.quality.tasks import common_words, frequent_words, near_duplicates, words
from ellm.quality.tasks.filling import LEAST_FILL, Prompt
from ellm.quality.tasks.haystack import Haystack
from ellm.quality.tasks.registry import TASKS
from ellm.quality.tasks.task import Item, Setting, score
from ellm.quality.texts import default_haystacks
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.word_tokenizer import WordTokenizer

FOLDER = Path(common_words.__file__).parent
HAYSTACKS = [Haystack.from_text(text.name, text.content) for text in default_haystacks()]
PLAIN = Haystack("plain", tuple(f"line {number} says nothing" for number in range(500)))
LENGTHS = (1024, 4096, 9000)

tasks = pytest.mark.parametrize("name", TASKS)


def prompt(name: str, length: int = 2048, index: int = 0, seed: int = 0) -> Prompt:
    return make_prompt(ItemKey(name, length, index), seed, HAYSTACKS, WordTokenizer())


def item(name: str, size: int = 40, position: float = 0.3, key: str = "k") -> Item:
    setting = Setting(key=key, length_tokens=4096, position=position, haystack=PLAIN)
    return TASKS[name].make(setting, size)


@tasks
def test_an_item_hangs_on_seed_task_length_and_index_alone(name: str) -> None:
    assert prompt(name) == prompt(name)
    others = [prompt(name, seed=1), prompt(name, index=1), prompt(name, length=2049)]
    documents = {made.item.document for made in (prompt(name), *others)}
    assert len(documents) == 4


@tasks
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("index", [0, 1])
def test_a_prompt_is_at_most_as_long_as_asked_and_hardly_shorter(
    name: str, length: int, index: int
) -> None:
    found = len(prompt(name, length, index).tokens)
    assert LEAST_FILL * length <= found <= length


@tasks
def test_few_texts_are_encoded_to_find_the_right_size(name: str) -> None:
    tokenizer = WordTokenizer()
    make_prompt(ItemKey(name, 8192, 0), 0, HAYSTACKS, tokenizer)
    assert tokenizer.texts_encoded <= 2 * 7  # the prompt and the beginning of its answer


@tasks
@pytest.mark.parametrize("size", [0, 1, 7, 200])
def test_the_document_has_the_answer_and_the_question_does_not(name: str, size: int) -> None:
    made = item(name, size)
    for text in made.expected:
        assert text in made.document
        assert text not in made.question + made.answer_prefix
    assert len(set(made.expected)) == len(made.expected)


@tasks
def test_the_right_answer_scores_1_and_a_wrong_one_0(name: str) -> None:
    made, other = item(name), item(name, key="another")
    assert score(f" {', '.join(reversed(made.expected))}.", made.expected) == 1.0
    assert score(", ".join(made.expected).upper(), made.expected) == 1.0
    assert score(", ".join(other.expected), made.expected) == 0.0
    assert score("", made.expected) == 0.0
    share = 1 / len(made.expected)
    assert score(f"it is {made.expected[0]}", made.expected) == pytest.approx(share)


@tasks
def test_the_right_answer_fits_the_tokens_of_an_answer(name: str) -> None:
    tokenizer = WordTokenizer()
    task = TASKS[name]
    assert task.max_tokens <= MAX_ANSWER_TOKENS
    for index in range(5):
        expected = prompt(name, index=index).item.expected
        assert len(tokenizer.encode(" " + ", ".join(expected) + ".")) <= task.max_tokens


@tasks
def test_a_beginning_of_an_answer_ends_where_a_token_does(name: str) -> None:
    assert item(name).answer_prefix == item(name).answer_prefix.strip()


@tasks
def test_the_needle_is_where_it_shall_be(name: str) -> None:
    if not TASKS[name].has_position:
        assert item(name).position is None
        return
    for place in (0.0, 0.24, 0.5, 0.77, 0.99):
        made = item(name, size=600, position=place)
        assert made.needle is not None
        assert made.document.count(made.needle) == 1
        assert any(text in made.needle for text in made.expected)
        found = made.position
        assert found is not None
        # Six copies have six places.
        assert found == pytest.approx(place, abs=0.2 if name == "near-duplicates" else 0.04)


def test_places_are_the_same_at_all_lengths_and_fill_the_document_evenly() -> None:
    for name in ("single-needle", "hex-copy"):
        short = [prompt(name, 2048, index).item.position for index in range(10)]
        long = [prompt(name, 4096, index).item.position for index in range(10)]
        assert short == pytest.approx(long, abs=0.05)
        places = sorted(place for place in short if place is not None)
        assert max(b - a for a, b in itertools.pairwise([0.0, *places, 1.0])) < 0.25


def test_texts_take_turns_as_haystacks() -> None:
    names = [text.name for text in default_haystacks()]
    documents = [prompt("single-needle", index=index).item.document for index in range(2)]
    for haystack, document in zip(HAYSTACKS, documents, strict=True):
        lines = set(document.splitlines())
        assert len(lines & set(haystack.lines)) >= len(lines) - 3, names


def test_samples_come_one_by_one_so_that_a_stopped_run_has_all_tasks() -> None:
    plan = QualityPlan(
        lengths_tokens=(1024, 2048),
        tasks=("hex-copy", "multi-key"),
        samples=2,
        candidates=(REFERENCE,),
    )
    keys = list(item_keys(plan))
    assert len(keys) == len(set(keys)) == 8
    assert [key.index for key in keys] == [0] * 4 + [1] * 4
    assert str(keys[1]) == "hex-copy at 2,048 tokens, sample 1"


def test_a_length_without_room_for_the_question_is_refused_by_name() -> None:
    plan = QualityPlan(lengths_tokens=(1024,), tasks=("common-words",), candidates=(REFERENCE,))
    with pytest.raises(ConfigError, match=r"common-words needs 1,\d\d\d tokens .* of 1,024"):
        check_lengths(plan, HAYSTACKS, byte_tokenizer())
    check_lengths(plan, HAYSTACKS, WordTokenizer())


def test_multi_key_has_one_note_for_each_of_five_names() -> None:
    made = item("multi-key")
    notes = re.findall(r"access code of ([\w-]+) is (\d{6})\.", made.document)
    assert len(notes) == len(dict(notes)) == 5
    assert [code for name, code in notes if name in made.question] == list(made.expected)


def test_multi_value_has_four_codes_of_one_name() -> None:
    made = item("multi-value")
    notes = re.findall(r"access code of ([\w-]+) is (\d{6})\.", made.document)
    assert len(dict(notes)) == 1
    assert {code for _, code in notes} == set(made.expected)
    assert len(made.expected) == 4


def test_multi_query_asks_for_names_in_the_order_of_the_codes() -> None:
    made = item("multi-query")
    codes = dict(re.findall(r"access code of ([\w-]+) is (\d{6})\.", made.document))
    asked = [name for name in re.findall(r"[a-z]+-[a-z]+", made.question) if name in codes]
    assert [codes[name] for name in asked] == list(made.expected)


def test_needle_haystack_is_all_needles_and_each_key_is_there_once() -> None:
    made = item("needle-haystack", size=12_000)
    lines = made.document.splitlines()[2:]
    pairs = dict(line.split(": value-") for line in lines)
    assert len(pairs) == len(lines) == 12_001
    key = made.answer_prefix.partition(":")[0]
    assert (pairs[key],) == made.expected


def test_hex_copy_asks_for_32_digits_of_the_record() -> None:
    made = item("hex-copy")
    records = dict(re.findall(r"record (\d{4}): ([0-9a-f]{32})", made.document))
    assert len(records) == 41
    record = made.answer_prefix.removeprefix("record ").rstrip(":")
    assert records[record] == "".join(made.expected)
    assert score(records[record], made.expected) == 1.0
    assert score(records[record][:20], made.expected) == 0.5


def test_variables_are_those_that_the_assignments_lead_to() -> None:
    made = item("variable-tracking")
    values: dict[str, str] = {}
    for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", made.document):
        values[name] = values.get(value, value)
    asked = re.findall(r"\d{5}", made.question)[0]
    assert tuple(name for name, value in values.items() if value == asked) == made.expected
    assert len(made.expected) == 5


@pytest.mark.parametrize(("length", "repeats"), [(4096, (30, 3)), (2048, (8, 1))])
def test_common_words_are_the_most_common(length: int, repeats: tuple[int, int]) -> None:
    setting = Setting(key="k", length_tokens=length, position=0.0, haystack=PLAIN)
    made = common_words.make(setting, 50)
    counts = Counter(re.findall(r"\d+\. (\w+)", made.document))
    assert {word for word, _ in counts.most_common(10)} == set(made.expected)
    assert set(counts.values()) == set(repeats)


def test_no_common_word_is_part_of_another() -> None:
    everything = words.compounds(Random(0))
    known = set(everything)
    assert len(known) == len(everything) > 9_000
    for word in everything:
        parts = {word[a:b] for a in range(len(word)) for b in range(a + 6, len(word) + 1)}
        assert parts & known == {word}


@pytest.mark.parametrize("size", [0, 1, 13, 200, 5000])
def test_frequent_words_are_the_most_frequent_but_for_the_noise(size: int) -> None:
    setting = Setting(key="k", length_tokens=4096, position=0.0, haystack=PLAIN)
    made = frequent_words.make(setting, size)
    counts = Counter(made.document.partition("\n\n")[2].split())
    (noise, _), *asked, (_, fourth) = counts.most_common(5)
    assert noise == "...."
    assert [word for word, _ in asked] == list(made.expected)
    assert len({count for _, count in asked}) == 3
    assert asked[-1][1] > fourth


def test_code_lookup_returns_what_the_code_returns() -> None:
    made = item("code-lookup", size=30)
    files = dict(re.findall(r"=== (app/\w+\.py) ===\n(.*?)(?=\n\n===|\Z)", made.document, re.S))
    caller = files.pop("app/report.py")
    imported = re.match(r"from app\.(\w+) import (\w+)", caller)
    assert imported is not None
    definitions: dict[str, object] = {}
    exec(files[f"app/{imported[1]}.py"], definitions)
    defined = definitions[imported[2]]
    assert callable(defined)
    assert (str(defined()),) == made.expected
    assert f"return {imported[2]}()" in caller
    assert len(files) == 6


def test_near_duplicates_differ_in_one_line_each() -> None:
    made = item("near-duplicates", size=100)
    *copies, annex = re.split(r"\n\n(?==== )", made.document)
    assert len(copies) == near_duplicates.COPIES
    bodies = [copy.splitlines()[1:] for copy in copies]
    differing = [lines for lines in zip(*bodies, strict=True) if len(set(lines)) > 1]
    assert len(differing) == 1
    assert len(set(differing[0])) == near_duplicates.COPIES
    asked = made.answer_prefix.split()[-2]
    (copy,) = [copy for copy in copies if f"=== Contract with {asked} ===" in copy]
    assert f"The notice period is {made.expected[0]} days." in copy
    assert len(annex.splitlines()) == 1 + 100 % near_duplicates.COPIES


def test_every_file_of_a_task_is_registered() -> None:
    files = {path.name for path in FOLDER.glob("*.py") if "\nTASK = Task(" in path.read_text()}
    assert files == {f"{name.replace('-', '_')}.py" for name in TASKS}


def test_every_task_says_what_it_is() -> None:
    for name, task in TASKS.items():
        assert name == task.name
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert task.summary
