"""From outputs to scores: decoding, metrics, thresholds, ensembles, statistics and trust."""
