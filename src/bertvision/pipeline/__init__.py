"""A run as a story: open → fine-tune → states → heads → score. Each stage does what is missing; `run.py` tells it."""
