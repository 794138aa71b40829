"""Which blocks of the key-value cache belong to whom."""
