"""The measurements made with the library: experiments, the kept scores of their runs, and the results pages."""
