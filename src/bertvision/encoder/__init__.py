"""The encoder: loaded by name or from a folder, run on packed batches, returns the hidden states of every layer."""
