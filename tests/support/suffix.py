"""The longest suffix that a text had before, by trying all of them."""

import numpy as np


class NaiveSuffixIndex:
    """What `native.SuffixIndex` does, in quadratic time."""

    def __init__(self):
        self.text = []

    def extend(self, tokens):
        assert tokens.dtype == np.int32
        self.text += tokens.tolist()

    def match(self):
        text = self.text
        best = (0, len(text))
        for end in range(len(text) - 1, 0, -1):
            length = 0
            while length < end and text[end - 1 - length] == text[-1 - length]:
                length += 1
            if length > best[0]:
                best = (length, end)
        return best
