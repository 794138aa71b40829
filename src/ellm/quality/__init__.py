"""What an attention mode, a KV type or another quantisation does to a model's answers."""
