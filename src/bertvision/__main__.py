"""`python -m bertvision` and the `bertvision` command."""

from bertvision.cli import main

if __name__ == "__main__":
    main()
