"""`ellm list`: the models that have a name, and those that are on this machine."""

from __future__ import annotations

from typing import Any

from ellm.cli.console import Console
from ellm.cli.options import JsonOption
from ellm.units import format_bytes


def list_models(json: JsonOption = False) -> None:
    """List the built-in models and the other model files in the cache."""
    console = Console(as_json=json)
    rows = _rows()
    if json:
        console.result_object({"models": rows})
        return
    name_width = max(len(row["name"]) for row in rows)
    for row in rows:
        where = row["path"] or "not here: ellm pull fetches it"
        console.result(
            f"{row['name']:<{name_width}}  {format_bytes(row['size_bytes']):>8}  "
            f"{row['licence'] or '':<18}  {where}"
        )


def _rows() -> list[dict[str, Any]]:
    from ellm.hub import REGISTRY, local_models, locate_entry

    rows: list[dict[str, Any]] = []
    for entry in REGISTRY.values():
        path = locate_entry(entry)
        rows.append(
            {
                "name": entry.name,
                "summary": entry.summary,
                "size_bytes": entry.size_bytes,
                "licence": entry.licence,
                "path": None if path is None else str(path),
            }
        )
    listed = {row["path"] for row in rows}
    for path in local_models():
        if str(path) not in listed:
            rows.append(
                {
                    "name": path.name,
                    "summary": None,
                    "size_bytes": path.stat().st_size,
                    "licence": None,
                    "path": str(path),
                }
            )
    return rows
