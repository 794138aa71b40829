"""GGUF model files: opening, typed metadata and raw tensor bytes."""

from ellm.formats.gguf.file import GgufFile, Shard, TensorInfo
from ellm.formats.gguf.metadata import MetadataReader, MetadataValue

__all__ = ["GgufFile", "MetadataReader", "MetadataValue", "Shard", "TensorInfo"]
