"""Sources of guesses that are right or wrong by design, and step times that no clock changes."""

import random

from ellm.engine.chains import Chains
from ellm.speculative.source import Proposal
from ellm.speculative.step_times import StepTimes


class RandomDrafter:
    """Guesses at random, sure of itself; keeps what it was told."""

    name = "random"
    outlook = None

    def __init__(self, vocab_size, log=None, *, seed=5):
        self._vocab_size = vocab_size
        self._random = random.Random(seed)
        self.told = []
        self.closed = False
        if log is not None:
            log.append(self)

    def propose(self, most, context):
        del context
        tokens = self.guess(self._random.randint(1, most))
        return Proposal(self.name, tokens, [1.0] * len(tokens))

    def guess(self, count):
        return [self._random.randrange(self._vocab_size) for _ in range(count)]

    def commit(self, tokens):
        self.told += tokens

    def close(self):
        assert not self.closed
        self.closed = True


class OracleDrafter(RandomDrafter):
    """Knows what follows, from `expected(told, count)`, and errs now and then."""

    name = "oracle"

    def __init__(self, vocab_size, expected, log=None, *, error_rate=0.2):
        super().__init__(vocab_size, log)
        self._expected = expected
        self._error_rate = error_rate

    def guess(self, count):
        tokens = self._expected(self.told, count)
        return [
            self._random.randrange(self._vocab_size)
            if self._random.random() < self._error_rate
            else token
            for token in tokens
        ]


class FlatTimes(StepTimes):
    """Steps take the same time whatever their rows: what is proposed does not depend on a clock."""

    def __init__(self, seconds=1.0):
        super().__init__()
        self.seconds = seconds

    def predict(self, mode, depth_tokens, rows):
        del mode, depth_tokens, rows
        return self.seconds


def timeless(chains: Chains) -> Chains:
    """Return `chains` with all rows but the first for free, and nothing measured."""
    chains._times = FlatTimes()
    chains.measured = True
    return chains
