from __future__ import annotations

import re

import pytest

from .conftest import Ellm
from .fakes import FakeBackend

OUT_OF_RANGE = [
    ("-n", "0", "1 to 2147483647"),
    ("-n", "-5", "1 to 2147483647"),
    ("-n", str(2**31), "1 to 2147483647"),
    ("-c", "1", "2 to 2147483647"),
    ("-t", "0", "1 to 4096"),
    ("-t", "100000", "1 to 4096"),
    ("-b", "0", "1 to 8192"),
    ("-b", "9000", "1 to 8192"),
    ("--kv-type", "q8", "int8 or f16"),
    ("--temperature", "-0.1", "0 to 100"),
    ("--temperature", "nan", "0 to 100"),
    ("--temperature", "1e999", "0 to 100"),
    ("--top-k", "-1", "0 to 2147483647"),
    ("--top-p", "0", "above 0 to 1"),
    ("--top-p", "1.01", "above 0 to 1"),
    ("--min-p", "1.5", "0 to 1"),
    ("--repeat-penalty", "0", "above 0 to 10"),
    ("--presence-penalty", "2.5", "-2 to 2"),
    ("--frequency-penalty", "-2.5", "-2 to 2"),
    ("--seed", "-1", "0 to 9223372036854775807"),
    ("--stop", "", "1 to 1024 bytes"),
    ("--stop", "x" * 1025, "1 to 1024 bytes"),
    ("--logit-bias", "5", "ID=VALUE"),
    ("--logit-bias", "a=1", "ID=VALUE"),
    ("--logit-bias", "-1=1", "ID=VALUE"),
    ("--logit-bias", "5=101", "-100 to 100"),
    ("--logit-bias", "5=nan", "-100 to 100"),
]


@pytest.mark.parametrize("command", [["run"], ["ask", "report.txt"]])
@pytest.mark.parametrize(("option", "value", "allowed"), OUT_OF_RANGE)
def test_values_out_of_range_name_the_option_and_the_range(
    ellm: Ellm, fake: FakeBackend, command: list[str], option: str, value: str, allowed: str
) -> None:
    done = ellm(*command, "-p", "x", option, value)
    assert done.status == 2
    assert option in done.err
    assert allowed in done.err
    assert fake.engines == []


@pytest.mark.parametrize("option", ["-n", "-c", "-t", "-b", "--top-k", "--seed", "--temperature"])
def test_what_is_no_number_is_refused(ellm: Ellm, fake: FakeBackend, option: str) -> None:
    done = ellm("run", "-p", "x", option, "many")
    assert done.status == 2
    assert option in done.err
    assert "number" in done.err or "integer" in done.err
    assert fake.engines == []


def test_too_many_stop_strings_are_refused(ellm: Ellm, fake: FakeBackend) -> None:
    stops = [word for number in range(17) for word in ("--stop", str(number))]
    done = ellm("run", "-p", "x", *stops)
    assert (done.status, fake.engines) == (2, [])
    assert "17 stop strings, allowed are 16" in done.err


@pytest.mark.parametrize(
    "option",
    [
        "--lora",
        "--gpu-layers",
        "--numa",
        "--numa-aware",
        "--quant-level",
    ],
)
def test_options_of_later_versions_are_refused_not_ignored(
    ellm: Ellm, fake: FakeBackend, option: str
) -> None:
    done = ellm("run", "-p", "x", option, "1")
    assert (done.status, fake.engines) == (2, [])
    assert f"No such option: {option}" in done.err


def test_a_misspelt_option_gets_the_nearest(ellm: Ellm, fake: FakeBackend) -> None:
    done = ellm("run", "-p", "x", "--temperatur", "1")
    assert (done.status, fake.engines) == (2, [])
    assert "--temperature" in done.err


def test_a_misspelt_command_gets_the_nearest(ellm: Ellm) -> None:
    done = ellm("aks")
    assert done.status == 2
    assert "Did you mean 'ask'" in done.err


def test_long_and_short_spellings_are_the_same(ellm: Ellm, fake: FakeBackend) -> None:
    ellm(
        "run",
        "--model",
        "m",
        "--prompt",
        "p",
        "--max-tokens",
        "3",
        "--n-ctx",
        "50",
        "--threads",
        "1",
        "--n-batch",
        "8",
    )
    chosen = fake.engine.options["options"]
    assert (chosen.threads, chosen.rows_per_chunk) == (1, 8)
    assert (chosen.max_tokens, chosen.context_tokens, chosen.model) == (3, 50, "m")


@pytest.mark.parametrize("command", ["ask", "run", "pull", "list", "show", "bench"])
def test_every_command_has_help_that_names_its_options(ellm: Ellm, command: str) -> None:
    done = ellm(command, "--help")
    assert done.status == 0
    assert "--json" in done.out
    assert ellm(command, "-h") == done


def test_version(ellm: Ellm) -> None:
    done = ellm("--version")
    assert done.status == 0
    assert re.fullmatch(r"ellm \d+\.\d+\.\d+\S*\n", done.out)


def test_without_a_command_help_is_shown(ellm: Ellm) -> None:
    done = ellm()
    assert done.status == 2
    assert "Commands:" in done.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--speculation", "magic"], "allowed is off or auto or suffix or draft_model or shallow"),
        (["--speculation", "draft_model"], "draft_model"),
        (["--speculation", "suffix", "--draft-model", "tiny"], "none with speculation 'suffix'"),
        (["--draft-model", ""], "a path or the name of a model"),
        (["--speculative-chain", "0"], "1 to 32"),
        (["--speculative-chain", "33"], "1 to 32"),
    ],
)
def test_sources_of_guesses_that_cannot_work_are_refused(
    ellm: Ellm, fake: FakeBackend, options: list[str], told: str
) -> None:
    done = ellm("run", "-p", "x", *options)
    assert (done.status, fake.engines) == (2, [])
    assert told in " ".join(done.err.split())
