"""`python -m bertvision` and the `bertvision` command."""

import sys


def main() -> None:
    """Runs the command line; what a user can put right is said in a sentence, without a traceback."""
    from bertvision.cli import app
    from bertvision.errors import UserError

    try:
        app()
    except UserError as error:
        sys.exit(_say(f"error: {error}", 2))
    except KeyboardInterrupt:
        sys.exit(_say("\nstopped.", 130))  # before a command began; the commands say more
    except BrokenPipeError:
        sys.exit(1)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        advice = "set smaller train.encode_tokens and finetune.memory_tokens. What was done is kept."
        sys.exit(_say(f"error: the GPU's memory has run out: {advice}", 2))


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
