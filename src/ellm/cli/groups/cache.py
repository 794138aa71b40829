"""`ellm cache`: what was read and is kept on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ellm.cli import cache_view
from ellm.cli.checks import within
from ellm.cli.confirm import require_yes
from ellm.cli.console import Console
from ellm.cli.kv_place import default_kv_dir, kv_place
from ellm.cli.options import CacheDirOption, GenerationOptions, JsonOption
from ellm.config.cache import MAX_GB
from ellm.units import count_of, format_bytes

if TYPE_CHECKING:
    from ellm.kv.disk.disk_cache import DiskCache

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look after what was read and is kept on disk, so that no text is read twice.",
)
# Nothing is put or read here, so no model is named.
_ANY_MODEL = bytes(32)


@app.command("ls")
def list_cache(cache_dir: CacheDirOption = None, json: JsonOption = False) -> None:
    """List what is kept, by model.

    The last line says how much of the quota is used.
    """
    console = Console(as_json=json)
    directory = _directory(cache_dir)
    if not directory.is_dir():
        _tell_nothing(console, directory)
        return
    quota_bytes = _quota_bytes(directory)
    with _open(directory, read_only=True) as cache:
        held = cache_view.with_names(cache.holdings())
        used = cache.bytes_used
    if json:
        console.result_object(
            {
                "directory": str(directory),
                "bytes": used,
                "quota_bytes": quota_bytes,
                "models": [cache_view.values(item) for item in held],
            }
        )
        return
    lines = cache_view.listing(directory, held, bytes_used=used, quota_bytes=quota_bytes)
    console.result("\n".join(lines))


@app.command("show")
def show_cache(
    fingerprint: Annotated[
        str, typer.Argument(metavar="FINGERPRINT", help="Its first digits, as ls has them.")
    ],
    cache_dir: CacheDirOption = None,
    json: JsonOption = False,
) -> None:
    """Show what is kept of one model."""
    console = Console(as_json=json)
    directory = _directory(cache_dir)
    holdings = []
    if directory.is_dir():
        with _open(directory, read_only=True) as cache:
            holdings = cache.holdings()
    item = cache_view.chosen(cache_view.with_names(holdings), fingerprint.lower())
    if json:
        console.result_object({"directory": str(directory), **cache_view.values(item)})
    else:
        console.result("\n".join(cache_view.details(item)))


@app.command("prune")
def prune_cache(
    to_gb: Annotated[
        float,
        typer.Option(
            "--to-gb",
            metavar="N",
            help="Gigabytes that may stay; what was not used for longest goes.",
            callback=within(0.0, MAX_GB),
        ),
    ],
    cache_dir: CacheDirOption = None,
    json: JsonOption = False,
) -> None:
    """Delete what was not used for longest.

    So much goes that the rest takes --to-gb gigabytes.
    """
    console = Console(as_json=json)
    directory = _directory(cache_dir)
    if not directory.is_dir():
        _tell_nothing(console, directory)
        return
    with _open(directory) as cache:
        freed = cache.prune(int(to_gb * 1e9))
        _tell_freed(console, directory, freed, cache.bytes_used)


@app.command("verify")
def verify_cache(cache_dir: CacheDirOption = None, json: JsonOption = False) -> None:
    """Check every page.

    Damaged ones are dropped and read anew when they are needed; then the exit status is 1.
    """
    console = Console(as_json=json)
    directory = _directory(cache_dir)
    if not directory.is_dir():
        _tell_nothing(console, directory)
        return
    line = console.progress("checking")

    def progress(done_bytes: int, total_bytes: int) -> None:
        detail = f"{format_bytes(done_bytes)} of {format_bytes(total_bytes)}"
        line.update(done_bytes, total_bytes, detail)

    with _open(directory) as cache:
        report = cache.verify(progress)
        line.clear()
        dropped = cache.writable
    checked = format_bytes(report.bytes_checked)
    if json:
        found = {"good": report.good, "bad": report.bad, "bytes_checked": report.bytes_checked}
        console.result_object({"directory": str(directory), **found, "dropped": dropped})
    elif report.bad:
        what = (
            "they are dropped, and will be read anew"
            if dropped
            else "another process writes to the cache and drops them when it meets them"
        )
        console.result(
            f"{count_of(report.bad, 'page')} of {report.good + report.bad} bad ({checked}): {what}"
        )
    else:
        console.result(f"{count_of(report.good, 'page')} good ({checked})")
    if report.bad:
        raise typer.Exit(1)


@app.command("clear")
def clear_cache(
    cache_dir: CacheDirOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete everything that is kept.

    Texts are read anew when they are asked about again.
    """
    console = Console(as_json=json)
    directory = _directory(cache_dir)
    if not directory.is_dir():
        _tell_nothing(console, directory)
        return
    with _open(directory) as cache:
        used = format_bytes(cache.bytes_used)
        require_yes(f"delete all pages in {directory}, {used}?", yes=yes)
        _tell_freed(console, directory, cache.clear(), cache.bytes_used)


def _directory(named: Path | None) -> Path:
    return (named or default_kv_dir()).expanduser()


def _open(directory: Path, *, read_only: bool = False) -> DiskCache:
    from ellm.kv.disk.disk_cache import DiskCache

    return DiskCache.open(
        directory,
        fingerprint=_ANY_MODEL,
        block_bytes=1,
        quota_bytes=_quota_bytes(directory),
        read_only=read_only,
    )


def _quota_bytes(directory: Path) -> int:
    """Return what commands may take of a directory when they are not told."""
    return int(kv_place(GenerationOptions(cache_dir=directory), Console()).disk_gb * 1e9)


def _tell_nothing(console: Console, directory: Path) -> None:
    if console.as_json:
        console.result_object({"directory": str(directory), "bytes": 0, "models": []})
    else:
        console.result(f"{directory}: nothing is kept there")


def _tell_freed(console: Console, directory: Path, freed: int, left: int) -> None:
    if console.as_json:
        console.result_object({"directory": str(directory), "freed_bytes": freed, "bytes": left})
    else:
        console.result(f"{directory}: {format_bytes(freed)} deleted, {format_bytes(left)} left")
