"""All tasks: one line each."""

from __future__ import annotations

from ellm.quality.tasks import (
    code_lookup,
    common_words,
    frequent_words,
    hex_copy,
    multi_key,
    multi_query,
    multi_value,
    near_duplicates,
    needle_haystack,
    single_needle,
    variable_tracking,
)
from ellm.quality.tasks.task import Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        single_needle.TASK,
        multi_key.TASK,
        needle_haystack.TASK,
        multi_value.TASK,
        multi_query.TASK,
        variable_tracking.TASK,
        common_words.TASK,
        frequent_words.TASK,
        hex_copy.TASK,
        code_lookup.TASK,
        near_duplicates.TASK,
    )
}
