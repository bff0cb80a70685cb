"""Kits: heads for several tasks on one untouched encoder. A text goes through the encoder once for all tasks."""
