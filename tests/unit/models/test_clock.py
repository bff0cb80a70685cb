"""The clock of a fit."""

import time

from bertvision.models.clock import Clock


def test_a_clock_is_over_when_its_seconds_are_used_up_or_it_is_stopped() -> None:
    assert Clock(-1.0).is_over() and not Clock(60.0).is_over() and not Clock(None).is_over()
    clock = Clock(None)
    clock.stop()
    assert clock.is_over()


def test_a_patient_clock_does_not_count_time_in_which_this_program_waits() -> None:
    strict, patient = Clock(None), Clock(None, patient=True)
    time.sleep(0.05)
    assert strict.spent >= 0.05 > patient.spent


def test_laps_add_up_to_the_whole_time() -> None:
    clock = Clock(None)
    first = clock.lap()
    time.sleep(0.01)
    second = clock.lap()
    assert second >= 0.01 and first + second <= clock.spent
