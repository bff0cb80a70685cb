"""Spans: from start and end logits to answers and their official scores."""
