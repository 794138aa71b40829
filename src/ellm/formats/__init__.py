"""Model file formats: how files are read and how their weights decode."""
