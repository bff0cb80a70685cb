"""The encoder: found by name or folder, run packed, with the hidden states of every layer as its output."""
