"""Text to tokens and back, and chats to text, as the model file says."""

from ellm.tokenizers.stream import StreamDecoder
from ellm.tokenizers.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
