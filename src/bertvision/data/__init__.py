"""From examples to batches: windows of tokens, held-out parts, packed batches."""
