"""What was measured with the library: experiments, the scores that were kept of their runs, and docs/results.md."""
