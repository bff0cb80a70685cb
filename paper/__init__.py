"""The results page: what was kept of the runs, and how docs/results.md is made of it."""
