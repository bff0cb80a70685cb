"""Streamed or stored: expected seconds computed by hand, and the faster source."""

from pathlib import Path

import pytest

from bertvision.sources.cost import Rates, measure_disk, weigh
from bertvision.sources.store import open_location

# The encoder takes a thousand tokens per second; the disk writes 10 MB and reads 100 MB per second.
RATES = Rates(1000.0, 10e6, 100e6)


def test_one_pass_is_streamed_and_ten_are_stored() -> None:
    once = weigh(1, 60_000, 200_000_000, 1.0, RATES)
    # 60 s of encoding; writing 200 MB takes 20 s in parallel, reading them 2 s.
    assert once.source == "streamed"
    assert once.figures["seconds streamed"] == 60.0 and once.figures["seconds stored"] == 62.0
    often = weigh(10, 60_000, 200_000_000, 1.0, RATES)
    assert often.source == "stored"
    assert often.figures["seconds streamed"] == 600.0 and often.figures["seconds stored"] == 60.0 + 10 * 2.0
    assert "takes about 600 s;" in often.reason and "200 MB" in often.reason


def test_a_disk_slower_than_the_encoder_counts_while_writing() -> None:
    slow = weigh(3, 60_000, 1_000_000_000, 1.0, RATES)  # 100 s of writing, 60 s of encoding; 3 × 10 s of reading
    assert slow.figures["seconds stored"] == 130.0 and slow.source == "stored"
    slower = weigh(3, 60_000, 6_000_000_000, 1.0, RATES)  # 600 s of writing
    assert slower.source == "streamed"


def test_shards_already_written_cost_nothing() -> None:
    there = weigh(1, 60_000, 200_000_000, 0.0, RATES)
    assert there.source == "stored" and there.figures["seconds stored"] == 2.0
    half = weigh(1, 60_000, 200_000_000, 0.5, RATES)
    assert half.source == "stored" and half.figures["seconds stored"] == 32.0


def test_without_disk_space_states_are_streamed_and_the_reason_says_so() -> None:
    full = weigh(10, 60_000, 200_000_000, 1.0, RATES, free_bytes=150_000_000)
    assert full.source == "streamed" and "only 150 MB are free" in full.reason
    assert weigh(10, 60_000, 200_000_000, 0.5, RATES, free_bytes=150_000_000).source == "stored"


@pytest.mark.parametrize("store_bytes", [1000, 10**15])  # fits in memory, and does not
def test_measuring_the_disk_leaves_nothing_behind(tmp_path: Path, store_bytes: int) -> None:
    write, read = measure_disk(open_location(tmp_path / "not" / "there"), store_bytes)
    assert write > 0 and read > 0
    assert list(tmp_path.iterdir()) == []


def test_a_finished_store_is_measured_without_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = open_location(tmp_path)
    location.write("shard", [memoryview(bytes(100_000))])
    monkeypatch.setattr(type(location), "write", lambda *_: pytest.fail("the disk may be read-only"))
    write, read = measure_disk(location, 100_000, writes=False)
    assert write == float("inf") and 0 < read < float("inf")
