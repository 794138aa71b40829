"""Questions of any length whose answers are known: one file per family."""
