"""Whatever a template does, it ends in `TemplateError` in time, and the next chat is served."""

from __future__ import annotations

import time

import pytest

from ellm.errors import TemplateError
from ellm.tokenizers.template_process import MAX_TEMPLATE_BYTES, TemplateProcess

VARIABLES = {"messages": [{"role": "user", "content": "x"}]}
# Starting the process and the limit of two seconds, with room for a busy machine.
DEADLINE_SECONDS = 15

BOMBS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% endfor %}{% endfor %}",
    "a long string": "{{ 'a' * 10**9 }}",
    "a wide format": "{{ '%1000000000d' | format(1) }}",
    "a wide modulo": "{{ '%1000000000d' % 1 }}",
    "a wide centre": "{{ 'a'.center(2 * 10**9) }}",
    "doubling": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "a huge power": "{% set x = 10**7 %}{{ (x**x) % 7 }}",
    "much output": "{% for i in range(99999) %}aaaaaaaaaaaaaaaaaaaa{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "3,000 parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "100,000 signs": "{{ " + "-" * 100_000 + "1 }}",
    "5,000 conditions": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "200 loops": "{% for a in b %}" * 200 + "{% endfor %}" * 200,
    "a long range": "{{ range(10**9) | list }}",
    "many slices": "{{ range(10) | slice(10**9) | list }}",
    "a slow filter": "{{ ('a' * 10**6) | wordwrap(1) | length }}",
}
REFUSED = {
    "include": "{% include 'x' %}",
    "import": "{% import 'x' as y %}",
    "extends": "{% extends 'x' %}",
    "class walk": "{{ ''.__class__.__mro__ }}",
    "init": "{{ cycler.__init__.__globals__ }}",
    "mutation": "{{ messages.append(1) }}",
    "undefined": "{{ nothing.at.all }}",
    "raise_exception": "{{ raise_exception('not like this') }}",
    "huge date format": "{{ strftime_now('%Y' * 1000) }}",
    "syntax": "{% if %}",
    "unknown tag": "{% launch %}",
    "a lone surrogate": "{{ '\\ud800' }}",
    "big number": "{{ (10**5000) | string }}",
}


@pytest.mark.parametrize("name", [*BOMBS, *REFUSED])
def test_bad_templates_end_in_a_template_error(name: str) -> None:
    process = TemplateProcess((BOMBS | REFUSED)[name])
    start = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        process.render(VARIABLES)
    assert time.monotonic() - start < DEADLINE_SECONDS
    assert len(str(caught.value)) < 1000
    process.close()


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''|attr('__class__') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ lipsum.__globals__ }}",
        "{{ self._TemplateReference__context }}",
    ],
)
def test_private_attributes_are_empty(source: str) -> None:
    process = TemplateProcess(source)
    assert process.render(VARIABLES) == ""
    process.close()


def test_a_template_over_one_mebibyte_is_refused() -> None:
    with pytest.raises(TemplateError, match="larger"):
        TemplateProcess("x" * (MAX_TEMPLATE_BYTES + 1))


def test_a_template_that_explodes_only_sometimes_serves_the_next_chat() -> None:
    process = TemplateProcess(
        "{% if n == 1 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
        "{% endfor %}{% elif n == 2 %}{{ 'a' * 10**9 }}{% elif n == 3 %}{{ raise_exception('no') }}"
        "{% endif %}{{ n }}"
    )
    for n, complaint in ((1, "2 s"), (2, "memory"), (3, "no")):
        with pytest.raises(TemplateError, match=complaint):
            process.render({"n": n})
        assert process.render({"n": 7}) == "7"
    process.close()


def test_output_may_be_four_times_the_input_and_64_kib() -> None:
    process = TemplateProcess("{{ text * n }}")
    text = "ab" * 100_000
    assert process.render({"text": text, "n": 4}) == text * 4
    with pytest.raises(TemplateError, match="four times"):
        process.render({"text": text, "n": 5})
    process.close()


def test_loop_controls_dates_and_json_work() -> None:
    process = TemplateProcess(
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{{ strftime_now('%Y') | int > 2000 }}{{ {'\u00e9<': [1, none]} | tojson }}"
    )
    assert process.render({}) == '02True{"\u00e9<": [1, null]}'
    process.close()
