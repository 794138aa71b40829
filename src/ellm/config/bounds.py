"""Range checks of parameters: each failure names the field, what was found and what is allowed."""

from __future__ import annotations

from typing import NoReturn

from ellm.errors import ConfigError

MAX_TOKENS = 2**31 - 1  # token counts and positions are int32 in the native core


def refuse(field: str, found: object, allowed: str) -> NoReturn:
    """Raise the `ConfigError` for `field`; long values are shortened in the message."""
    raise ConfigError(f"{field} is {_shown(found)}; allowed is {allowed}")


def check_integer(field: str, found: object, *, minimum: int, maximum: int) -> int:
    """Return `found` if it is an integer (not a bool) in minimum..maximum.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(found, int) or isinstance(found, bool) or not minimum <= found <= maximum:
        refuse(field, found, f"an integer in {minimum}..{maximum}")
    return found


def check_number(
    field: str, found: object, *, minimum: float, maximum: float, above: bool = False
) -> float:
    """Return `found` as a float if it is a finite number in minimum..maximum.

    With `above`, the minimum itself is refused.

    Raises:
        ConfigError: It is a bool, not a number, NaN, infinite or out of range.
    """
    allowed = f"a number {'above' if above else 'from'} {minimum:g} to {maximum:g}"
    if not isinstance(found, int | float) or isinstance(found, bool):
        refuse(field, found, allowed)
    # NaN fails the comparison; a huge int is compared before float() could overflow.
    if not minimum <= found <= maximum or (above and found == minimum):
        refuse(field, found, allowed)
    return float(found)


def check_boolean(field: str, found: object) -> bool:
    """Return `found` if it is a bool.

    Raises:
        ConfigError: It is anything else, 0 and 1 included.
    """
    if not isinstance(found, bool):
        refuse(field, found, "True or False")
    return found


def _shown(found: object) -> str:
    try:
        text = repr(found)
    except ValueError:  # an int beyond Python's limit of digits
        return f"a {type(found).__name__} too long to show"
    return text if len(text) <= 80 else f"{text[:77]}..."
