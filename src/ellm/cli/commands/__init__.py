"""One file per command; each imports what is slow to import when it runs, not before."""
