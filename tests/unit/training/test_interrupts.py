"""Held interrupts. test_finetune.py and test_train.py check that the loops save complete steps after an interrupt."""

import os
import signal
import threading

import pytest

from bertvision.interrupts import SIGNALS, Terminated
from bertvision.training.checkpoint import held_interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_interrupt_is_only_recorded_and_raised_at_the_end(number: int) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt) as raised, held_interrupts() as asked:
        assert asked == []
        os.kill(os.getpid(), number)
        done.append("the step is finished")
        assert asked == [number]
    assert done and isinstance(raised.value, Terminated) == (number != signal.SIGINT)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_interrupt_raises_at_once(number: int) -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt) as raised, held_interrupts():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        reached = True
    assert not reached and isinstance(raised.value, Terminated) == (number != signal.SIGINT)


def test_the_original_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with held_interrupts():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with pytest.raises(ZeroDivisionError), held_interrupts():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_outside_the_main_thread_it_does_nothing() -> None:
    found: list[list[int]] = []

    def work() -> None:
        with held_interrupts() as asked:
            found.append(asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[]]
