"""From outputs to figures: decoding, official scores, what was chosen on held-out questions."""
