"""Chains: cheap guesses at the next tokens, checked together in one step."""
