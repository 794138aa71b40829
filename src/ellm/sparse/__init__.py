"""Which blocks of the KV cache answer rows read."""
