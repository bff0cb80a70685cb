"""The stages of a run: open → fine-tune → states → heads → score. Finished stages are skipped. Start with `run.py`."""
