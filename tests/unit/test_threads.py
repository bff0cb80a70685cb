"""The number of threads respects the user, the limits of the process and, for prediction, the load of the machine. No
test depends on the real load."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bertvision import machine, threads, waiting
from bertvision.threads import Threads, Use, choose_free_threads, choose_threads, free_cores, usable_cores

# ---------------------------------------------------------------------- usable cores


def fake_root(folder: Path, groups: str, files: dict[str, str]) -> Path:
    """A folder with /proc/self/cgroup and these files of /sys/fs/cgroup."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{key}": files[key] for key in files}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with eight cores, all of them usable, and no setting of the user."""
    for name in threads.NUMBERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    if sys.version_info >= (3, 13):
        monkeypatch.setattr(os, "process_cpu_count", lambda: 8)
    monkeypatch.setattr(threads, "_physical_cores", lambda: 8)
    monkeypatch.setattr(threads, "_quota", lambda root: float("inf"))


@pytest.fixture
def affinity_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_affinity", lambda: 8)


@pytest.mark.usefixtures("affinity_of_eight")
@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("50000 100000", 1),
        ("160000 100000", 2),
        ("9900000 100000", 8),
        ("", 8),
    ],
)
def test_a_quota_of_version_2_limits_the_cores(tmp_path: Path, text: str, cores: int) -> None:
    assert usable_cores(fake_root(tmp_path, "0::/", {"cpu.max": text})) == cores


@pytest.mark.usefixtures("affinity_of_eight")
def test_the_smallest_quota_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    files = {"slice/cpu.max": "300000 100000\n", "slice/job/cpu.max": "500000 100000\n"}
    root = fake_root(tmp_path, "0::/slice/job\n", files)
    assert usable_cores(root) == 3


@pytest.mark.usefixtures("affinity_of_eight")
@pytest.mark.parametrize(("quota", "cores"), [("-1\n", 8), ("400000\n", 4), ("1000\n", 1)])
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_a_quota_of_version_1_limits_the_cores(tmp_path: Path, quota: str, cores: int, mount: str) -> None:
    folder = f"{mount}/docker/abc"
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000\n"}
    root = fake_root(tmp_path, "3:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n", files)
    assert usable_cores(root) == cores


@pytest.mark.usefixtures("affinity_of_eight")
def test_a_container_that_sees_only_its_own_groups_is_limited(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}
    assert usable_cores(fake_root(tmp_path, "2:cpu:/docker/abc", files)) == 2


@pytest.mark.usefixtures("affinity_of_eight")
@pytest.mark.parametrize("groups", ["", "1:cpu:/a", "0::/../outside", "0::/a:b"])
def test_without_quota_files_there_is_no_limit(tmp_path: Path, groups: str) -> None:
    assert usable_cores(fake_root(tmp_path, groups, {})) == usable_cores(tmp_path / "nothing") == 8


@pytest.mark.usefixtures("eight_cores")
def test_the_affinity_limits_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 6})
    assert usable_cores() == 3


# ---------------------------------------------------------------------- the number of threads


@pytest.mark.usefixtures("eight_cores")
def test_without_limits_there_is_a_thread_per_core() -> None:
    assert str(choose_threads(8)) == "8 threads: this machine has 8 cores"


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_a_number_in_the_environment_wins(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(threads, "_quota", lambda root: 1.0)
    monkeypatch.setattr(threads, "free_cores", lambda: 0)
    monkeypatch.setenv(name, "8")
    chosen = choose_threads(8)
    assert str(chosen) == f"8 threads: {name} is set"
    assert choose_free_threads(chosen) is chosen


@pytest.mark.usefixtures("eight_cores")
def test_a_number_set_with_torch_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_quota", lambda root: 1.0)
    monkeypatch.setattr(threads, "free_cores", lambda: 0)
    chosen = choose_threads(3)
    assert str(chosen) == "3 threads: set with torch.set_num_threads"
    assert choose_free_threads(chosen) is chosen


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("quota", "words"),
    [(1.0, "1 thread: the container may use 1 core"), (2.0, "2 threads: the container may use 2 cores")],
)
def test_a_container_with_a_quota_gets_a_thread_per_core_of_it(
    monkeypatch: pytest.MonkeyPatch, quota: float, words: str
) -> None:
    monkeypatch.setattr(threads, "_quota", lambda root: quota)
    assert str(choose_threads(8)) == words


@pytest.mark.usefixtures("eight_cores")
def test_a_process_bound_to_some_cores_gets_a_thread_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert str(choose_threads(2)) == str(choose_threads(8)) == "2 threads: this process may use 2 of 8 cores"


@pytest.mark.usefixtures("eight_cores")
def test_torchs_own_number_is_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_physical_cores", lambda: 4)
    assert str(choose_threads(4)) == "4 threads: torch's default for 8 cores"


@pytest.mark.usefixtures("eight_cores")
def test_the_load_does_not_change_the_number_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 0)
    assert choose_threads(8).number == 8


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("free", "tokens", "words"),
    [
        (8, 10, "8 threads: 8 of 8 cores are free"),
        (2, 10, "2 threads: 2 of 8 cores are free"),
        (1, 10**6, "1 thread: 1 of 8 cores is free"),
        (0, 10, "1 thread: 0 of 8 cores are free"),
        (0, 10**6, "8 threads: 0 of 8 cores are free, but the pass is large"),
    ],
)
def test_prediction_uses_the_free_cores(monkeypatch: pytest.MonkeyPatch, free: int, tokens: int, words: str) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: free)
    monkeypatch.setattr(waiting, "spins", False)
    assert str(choose_free_threads(Threads(8, "any"), tokens)) == words


@pytest.mark.usefixtures("eight_cores")
def test_spinning_threads_never_compete_for_busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 0)
    monkeypatch.setattr(waiting, "spins", True)
    assert choose_free_threads(Threads(8, "any"), 10**6).number == 1


# ---------------------------------------------------------------------- free cores


@pytest.fixture
def readings(eight_cores: None, monkeypatch: pytest.MonkeyPatch) -> list[Use]:
    """What the counters of the system will show. The time is that of the last reading."""
    coming: list[Use] = []
    monkeypatch.setattr(threads, "_before", None)
    monkeypatch.setattr(threads, "_free", None)
    monkeypatch.setattr(threads, "measure_use", lambda: coming.pop(0))
    monkeypatch.setattr(threads.time, "monotonic", lambda: coming[0].moment if coming else 0.0)
    return coming


@pytest.mark.parametrize(
    ("everyone", "own", "free"), [(10, 10, 8), (10, 0, 7), (12, 10, 8), (45, 10, 4), (90, 10, 0), (5, 9, 8)]
)
def test_cores_that_others_used_are_not_free_and_our_own_load_does_not_count(
    readings: list[Use], everyone: float, own: float, free: int
) -> None:
    """CPU seconds spent within ten seconds."""
    readings += [Use(100.0, 50.0, 3.0), Use(110.0, 50.0 + everyone, 3.0 + own)]
    threads.watch_cores()
    assert free_cores() == free


def test_the_last_result_holds_until_there_is_a_long_enough_window(readings: list[Use]) -> None:
    readings += [Use(100.0, 0.0, 0.0), Use(110.0, 40.0, 0.0), Use(110.1, 40.8, 0.0)]
    threads.watch_cores()
    assert free_cores() == 4
    assert free_cores() == 4
    assert len(readings) == 1, "the system was not asked again"


def test_before_the_first_measurement_all_cores_count_as_free(readings: list[Use]) -> None:
    readings += [Use(100.0, 0.0, 0.0), Use(100.1, 0.8, 0.0)]
    assert free_cores() == 8


def test_the_counters_of_the_system_can_be_read() -> None:
    first, second = threads.measure_use(), threads.measure_use()
    assert second.moment >= first.moment and second.everyone >= first.everyone > 0 and second.own >= first.own > 0


# ---------------------------------------------------------------------- applied to torch


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with two cores, and torch with two threads."""
    for name in threads.NUMBERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(waiting, "spins", False)
    monkeypatch.setattr(threads, "_affinity", lambda: 2)
    monkeypatch.setattr(threads, "_quota", lambda root: float("inf"))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    machine.limit_threads.cache_clear()
    yield
    torch.set_num_threads(before)
    machine.limit_threads.cache_clear()


@pytest.mark.usefixtures("two_threads")
def test_a_machine_limits_torch_to_the_quota_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_quota", lambda root: 1.0)
    found = machine.Machine("cpu")
    assert torch.get_num_threads() == found.threads.number == machine.describe_environment(found)["threads"] == 1


@pytest.mark.usefixtures("two_threads")
def test_a_number_set_after_the_first_machine_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_quota", lambda root: 1.0)
    monkeypatch.setattr(threads, "free_cores", lambda: 0)
    machine.Machine("cpu")
    torch.set_num_threads(2)
    machine.Machine("cpu")
    with machine.sharing_cores() as chosen:
        assert torch.get_num_threads() == chosen.number == 2
    assert chosen.by_user


@pytest.mark.usefixtures("two_threads")
def test_one_thread_is_used_inside_if_no_core_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 0)
    with machine.sharing_cores():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with machine.sharing_cores(tokens=threads.LARGE):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_number_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 1)
    with pytest.raises(ZeroDivisionError), machine.sharing_cores():
        assert torch.get_num_threads() == 1
        _ = 1 / 0
    assert torch.get_num_threads() == 2


def test_a_machine_is_busy_if_more_programs_run_than_it_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(machine.psutil, "getloadavg", lambda: (4.0, 9.0, 9.0))
    assert not machine.is_crowded()  # our own work takes all cores
    monkeypatch.setattr(machine.psutil, "getloadavg", lambda: (8.0, 0.0, 0.0))
    assert machine.is_crowded()
