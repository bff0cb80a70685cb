"""The time that a fit may take."""

import time


class Clock:
    """Seconds since its start, and whether they are used up."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds` None: unlimited."""
        self.seconds, self.stopped = seconds, False
        self.started = self._lap = time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    def is_over(self) -> bool:
        return self.stopped or (self.seconds is not None and self.spent > self.seconds)

    def stop(self) -> None:
        """Count as over from now on."""
        self.stopped = True

    def lap(self) -> float:
        """Seconds since the last call."""
        now = time.monotonic()
        lap, self._lap = now - self._lap, now
        return lap
