"""Progress of long operations: silent by default; lines and bars (rate, time left) on the command line."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

verbose = False
"""Whether the command line shows details (--verbose)."""


class Bar:
    """Progress of one long operation."""

    def advance(self, amount: float, note: str = "") -> None:
        """Report that `amount` more is done. `note`, such as the loss, appears next to the bar."""


class Reporter:
    """Prints nothing: the default in the library."""

    def say(self, text: str) -> None:
        """Print one line for the user."""

    def say_if_new(self, topic: str, text: str) -> None:
        """Print a line, unless it repeats the last one on this topic."""
        last: dict[str, str] = vars(self).setdefault("last_lines", {})
        if last.get(topic) != text:
            last[topic] = text
            self.say(text)

    def detail(self, topic: str, text: str) -> None:
        """Print a line with --verbose only, unless it repeats the last one on this topic."""
        if verbose:
            self.say_if_new(topic, text)

    @contextmanager
    def bar(self, title: str, total: float, unit: str) -> Iterator[Bar]:
        """A progress bar over `total` units."""
        yield Bar()


class RichReporter(Reporter):
    """Lines and bars on the terminal, through rich."""

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: float, unit: str) -> Iterator[Bar]:
        if not self.console.is_terminal:
            yield _LineBar(self, title, total, unit)
            return
        from rich.progress import (
            BarColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Any) -> Text:
                speed = task.finished_speed or task.speed
                return Text(f"{speed:,.0f} {unit}/s" if speed else "")

        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), Rate(),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
        )  # fmt: skip
        with Progress(*columns, console=self.console, transient=True) as progress:
            yield _RichBar(progress, progress.add_task(title, total=total, note=""))


class _LineBar(Bar):
    """A line every 30 seconds, for logs and pipes, where a bar can't be redrawn."""

    SECONDS = 30.0

    def __init__(self, reporter: Reporter, title: str, total: float, unit: str) -> None:
        self.reporter, self.title, self.total, self.unit = reporter, title, total, unit
        self.done = 0.0
        self.started = self.printed = time.monotonic()

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.printed >= self.SECONDS:
            self.printed, rate = now, self.done / (now - self.started)
            left = (self.total - self.done) / rate if rate else 0.0
            percent = 100 * self.done / max(self.total, 1)
            line = f"{self.title}: {percent:.0f} %, {rate:,.0f} {self.unit}/s, {left:,.0f} s left"
            self.reporter.say(f"{line}, {note}" if note else line)


class _RichBar(Bar):
    def __init__(self, progress: Any, task: Any) -> None:
        self.progress, self.task = progress, task

    def advance(self, amount: float, note: str = "") -> None:
        self.progress.update(self.task, advance=amount, **({"note": note} if note else {}))
