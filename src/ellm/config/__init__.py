"""Parameters parsed and range-checked once, at the border; nothing here imports the rest."""
