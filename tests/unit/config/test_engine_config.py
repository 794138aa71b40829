import pytest

from ellm.config.engine import EngineConfig
from ellm.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", 0),
        ("threads", True),
        ("threads", "2"),
        ("threads", 4097),
        ("context_tokens", 1),
        ("context_tokens", 2**31),
        ("kv_type", "q8_0"),
        ("kv_type", None),
        ("rows_per_chunk", 0),
        ("rows_per_chunk", 8193),
        ("mmap", 1),
    ],
)
def test_option_that_cannot_work_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"^{field} is .*allowed is"):
        EngineConfig(**{field: value})


def test_defaults_leave_threads_and_context_to_the_machine():
    options = EngineConfig()
    assert (options.threads, options.context_tokens) == (None, None)
