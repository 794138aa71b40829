from __future__ import annotations

import pytest

from ellm.units import count_of, format_bytes, format_count, format_duration, format_parameters


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (98_362_432, "98.4 MB"),
        (1_117_320_768, "1.12 GB"),
        (5e18, "5000 PB"),
    ],
)
def test_bytes_have_three_digits_and_never_roll_over_to_a_thousand(
    nbytes: float, text: str
) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.8204, "820 ms"),
        (0.9999, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_counts_and_parameters() -> None:
    assert format_count(1234567) == "1,234,567"
    assert [format_parameters(n) for n in (12, 1500, 134_515_008, 1_543_714_304)] == [
        "12",
        "1.5 K",
        "135 M",
        "1.54 B",
    ]
    assert count_of(1, "file") == "1 file"
    assert count_of(0, "entry", "entries") == "0 entries"
