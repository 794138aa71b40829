"""The `ellm` command: the only part of eLLM that prints."""
