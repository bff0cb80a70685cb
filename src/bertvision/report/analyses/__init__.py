"""The analyses of a report, one file each; analysis.py finds them all."""
