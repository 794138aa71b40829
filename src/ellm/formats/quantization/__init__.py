"""Weight formats of GGUF files: block layouts and their NumPy decoders, one file per format."""

from ellm.formats.quantization.format import QuantizedFormat
from ellm.formats.quantization.registry import FORMATS, decode

__all__ = ["FORMATS", "QuantizedFormat", "decode"]
