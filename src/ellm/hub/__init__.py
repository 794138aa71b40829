"""Model references: where a model is on this machine, and how it gets there."""

from ellm.hub.fetch import Pulled
from ellm.hub.local import local_models, locate_entry
from ellm.hub.progress import Progress
from ellm.hub.registry import REGISTRY, ModelEntry
from ellm.hub.resolve import pull, resolve

__all__ = [
    "REGISTRY",
    "ModelEntry",
    "Progress",
    "Pulled",
    "local_models",
    "locate_entry",
    "pull",
    "resolve",
]
