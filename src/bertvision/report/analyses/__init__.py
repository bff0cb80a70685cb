"""The report of a run: one page that opens offline, and beside it Markdown, pictures and tables for programs."""
