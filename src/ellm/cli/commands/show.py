"""`ellm show`: what a model file holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ellm.cli import backend
from ellm.cli.console import Console
from ellm.cli.options import JsonOption, ModelArgument


def show(
    model: ModelArgument = None,
    json: JsonOption = False,
) -> None:
    """Show architecture, size, context and memory needs of a model."""
    from ellm.cli.model_card import model_card
    from ellm.formats.gguf.model_config import read_model_config
    from ellm.models import ARCHITECTURES

    console = Console(as_json=json)
    path = backend.find_model(model, console)
    file = backend.open_gguf(path)
    config = read_model_config(file, ARCHITECTURES)
    card = model_card(file, config, _registry_licence(path))
    if json:
        console.result_object(dataclasses.asdict(card))
    else:
        console.result("\n".join(card.lines()))


def _registry_licence(path: Path) -> str | None:
    from ellm.hub import REGISTRY

    names = {entry.filename: entry.licence for entry in REGISTRY.values()}
    return names.get(path.name)
