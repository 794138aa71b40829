"""Sequences, the scheduler, the generation loop and its statistics; `llm.LLM` is the door."""
