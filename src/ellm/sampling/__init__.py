"""From logits to token: penalties, filters, the draw, log-probabilities and stop strings."""
