"""Learns from local text what `--attention sparse` and `auto` use of a model."""
