"""The error tree: every failure a caller can meet is an `EllmError`."""

from __future__ import annotations


class EllmError(Exception):
    """Base of all errors raised on purpose by eLLM; `exit_code` is what the CLI returns for it."""

    exit_code = 1


class ConfigError(EllmError):
    """An option or parameter has a value that cannot work."""

    exit_code = 2


class RequestError(EllmError):
    """A prompt or sampling request cannot be served as asked."""


class ModelNotFoundError(EllmError):
    """A model reference names no file, registry entry or hub repository."""

    exit_code = 3


class DownloadError(EllmError):
    """A model could not be fetched, or what was fetched has the wrong checksum."""

    exit_code = 3


class InvalidModelError(EllmError):
    """A model file is damaged, hostile or inconsistent.

    Attributes:
        path: The file, or "" for bytes in memory.
        offset: Byte offset in the file where the problem was found, or None.
        found: What the file holds there.
        expected: What a valid file holds there.
    """

    exit_code = 4

    def __init__(
        self, what: str, *, path: str = "", offset: int | None = None, found: str, expected: str
    ) -> None:
        """Compose the message from what failed, where, found and expected."""
        where = path or "model data"
        at = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{where}: {what}{at}: found {found}, expected {expected}")
        self.path = path
        self.offset = offset
        self.found = found
        self.expected = expected


class UnsupportedError(EllmError):
    """The model or file is valid, but uses something eLLM does not implement."""

    exit_code = 4


class TemplateError(EllmError):
    """A chat template failed, refused its input, or ran over its time, memory or output limit."""


class CapacityError(EllmError):
    """The request needs more memory or context than there is.

    Attributes:
        needed: Units needed (bytes, or tokens for a context that is too small).
        available: Units there are.
    """

    exit_code = 5

    def __init__(self, message: str, *, needed: int, available: int) -> None:
        """Keep both numbers beside the message."""
        super().__init__(message)
        self.needed = needed
        self.available = available


class AbortedError(EllmError):
    """The running step was asked to stop before it was done."""

    exit_code = 130


class NativeError(EllmError):
    """The native core is missing or refused an internal call; always a bug or a broken build."""
