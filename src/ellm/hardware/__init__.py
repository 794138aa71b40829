"""What this machine, and the container around this process, allow it to use."""
