"""Numbers with their units as people read them: bytes, counts, durations."""

from __future__ import annotations

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_bytes(nbytes: float) -> str:
    """Format a byte count with three significant digits, in powers of 1000 (as GB/s are).

    Powers of 1024 were rejected: model files and bandwidths are published in powers of 1000, and
    their quotient, the decode ceiling, should be checkable by hand from what is printed.
    """
    value = float(nbytes)
    for unit in _BYTE_UNITS:
        shown = f"{value:.3g}"
        if abs(float(shown)) < 1000 or unit == _BYTE_UNITS[-1]:
            break
        value /= 1000
    return f"{float(shown):g} {unit}"


def format_count(count: int) -> str:
    """Format a whole number with thousands separators."""
    return f"{count:,}"


def format_parameters(count: int) -> str:
    """Format a parameter count as model names do: `135 M`, `1.54 B`."""
    for scale, suffix in ((1e9, " B"), (1e6, " M"), (1e3, " K")):
        if count >= scale:
            return f"{float(f'{count / scale:.3g}'):g}{suffix}"
    return str(count)


def format_duration(seconds: float) -> str:
    """Format a duration: `820 ms`, `12.4 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """Return the number with its noun: `1 file`, `2 files`, `0 directories`."""
    return f"{format_count(number)} {noun if number == 1 else plural or noun + 's'}"
