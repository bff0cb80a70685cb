"""`python -m bertvision` and the `bertvision` command."""

from bertvision import interrupts


def main() -> None:
    interrupts.listen()  # before the imports, which take a while
    from bertvision.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
