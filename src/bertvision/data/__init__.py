"""From examples to batches: windows of tokens, held-out data, packed batches."""
