"""The public API changes only on purpose."""

from __future__ import annotations

from tests.architecture.public_api import SNAPSHOT, describe


def test_the_public_api_is_the_one_written_down() -> None:
    assert describe() == SNAPSHOT.read_text(), (
        "the public API changed; if that is meant, say so in CHANGELOG.md and run "
        "python -m tests.architecture.public_api > tests/architecture/public_api.txt"
    )
