"""Words and numbers as people read them, for messages, tables and reports alike."""


def counted(number: float, noun: str) -> str:
    """1 epoch, 0.5 epochs, 1,000 steps."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun}{'' if number == 1 else 's'}"
