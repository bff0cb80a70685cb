"""The time that a fit may take."""

import time


class Clock:
    """Seconds since its start, and whether they are used up."""

    def __init__(self, seconds: float | None, patient: bool = False) -> None:
        """`seconds` None: unlimited. A `patient` clock does not count the time in which other programs have the cores:
        what is tried, and so the model, then depends less on how busy the machine is."""
        self.seconds, self.patient, self.stopped = seconds, patient, False
        self.started = self._lap = time.monotonic()
        self._used = time.process_time()

    @property
    def spent(self) -> float:
        elapsed = time.monotonic() - self.started
        return min(elapsed, time.process_time() - self._used) if self.patient else elapsed

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
