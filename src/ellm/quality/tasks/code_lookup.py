"""What a function returns that is defined in another file."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ellm.quality.tasks import words
from ellm.quality.tasks.task import Item, Setting, Task

_FUNCTIONS_PER_FILE = 6
_KINDS = words.listed("base default initial minimum maximum target reserve daily monthly yearly")
_FIGURES = words.listed("rate limit count price weight delay budget margin quota score width")


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks what a call across files returns, among `size` + 1 functions."""
    random = setting.random()
    count = size + 1
    values = words.numbers(random, count, digits=max(5, len(str(count)) + 1))
    functions = [
        f"def {random.choice(_KINDS)}_{random.choice(_FIGURES)}_{number}():\n    return {value}\n"
        for number, value in enumerate(values, 1)
    ]
    asked = min(int(setting.position * count), size)
    needle = functions[asked]
    name = needle[len("def ") : needle.index("(")]
    files = _files(functions, random)
    module = files[asked // _FUNCTIONS_PER_FILE][0]
    caller = (
        f"=== app/report.py ===\nfrom app.{module} import {name}\n\n\n"
        f"def report_total():\n    return {name}()\n"
    )
    parts = [f"=== app/{module}.py ===\n{text}" for module, text in files]
    parts.insert(random.randrange(len(parts) + 1), caller)
    return Item(
        document="\n\n".join(parts),
        question="What number does `report_total()` of app/report.py return? Answer with the "
        "number alone.",
        answer_prefix="It returns",
        expected=(values[asked],),
        needle=needle,
    )


def _files(functions: Sequence[str], random: Random) -> list[tuple[str, str]]:
    """Return functions as (module name, text) of files."""
    starts = range(0, len(functions), _FUNCTIONS_PER_FILE)
    return [
        (
            f"{random.choice(words.NOUNS)}_{number}",
            "\n\n".join(functions[start : start + _FUNCTIONS_PER_FILE]),
        )
        for number, start in enumerate(starts, 1)
    ]


TASK = Task(
    name="code-lookup",
    summary="what a function defined in another file returns",
    max_tokens=16,
    unit_tokens=22,
    has_position=True,
    make=make,
)
