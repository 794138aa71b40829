"""Architectures: one file per model family that records its program."""

from ellm.models.registry import ARCHITECTURES, build_program

__all__ = ["ARCHITECTURES", "build_program"]
