"""Findings that are written down: two layers of two KV heads, four query heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ellm.calibration.learning import TextFindings
from ellm.calibration.observing import HeadObservations
from ellm.calibration.plan import MASSES
from ellm.calibration.shape import Shape
from ellm.sparse.profile import HeldOutFigures

SHAPE = Shape(num_layers=2, num_kv_heads=2, num_heads=4, choosing=(True, True))


def figures(mean_kl: float = 0.001, p99_kl: float = 0.1, text: str = "t") -> HeldOutFigures:
    return HeldOutFigures(
        text=text,
        length_tokens=1024,
        positions=64,
        mean_kl=mean_kl,
        p99_kl=p99_kl,
        same_top=0.98,
        blocks_read_share=0.4,
    )


def findings(
    *,
    scale: float = 1.0,
    read: float = 0.3,
    beyond: float = 0.5,
    mean_kls: Sequence[float] = (0.001,) * len(MASSES),
) -> TextFindings:
    layers, kv_heads, heads = SHAPE.num_layers, SHAPE.num_kv_heads, SHAPE.num_heads
    return TextFindings(
        text="t",
        observations=HeadObservations(
            scales=np.full((layers, heads), scale),
            read=np.full((layers, kv_heads, len(MASSES)), read),
            beyond_window=np.full((layers, kv_heads), beyond),
        ),
        by_mass=tuple(figures(kl) for kl in mean_kls),
    )
