"""Locations: atomic writes, exact ranges, and other processes' files are left alone."""

import errno
import os
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest

from bertvision import network
from bertvision.disk import temporary
from bertvision.disk.writing import host_name
from bertvision.errors import UserError
from bertvision.sources.store.location import ByteRange, Folder, Location, open_location

DATA = bytes(range(256)) * 40


@pytest.fixture(params=["folder", "address"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "folder":
        return open_location(tmp_path / "deep" / "store")
    return open_location(f"memory://{uuid.uuid4()}/store")


def pieces(*parts: bytes) -> list[memoryview]:
    return [memoryview(part) for part in parts]


def read_scattered(location: Location, name: str, wanted: Sequence[tuple[int, Sequence[int]]]) -> list[bytes]:
    """Read ranges (start, sizes of the buffers), and return the contents of each buffer."""
    buffers = [[bytearray(size) for size in sizes] for _, sizes in wanted]
    views = [[memoryview(one) for one in some] for some in buffers]
    location.read_into(name, [ByteRange(start, some) for (start, _), some in zip(wanted, views, strict=True)])
    return [bytes(one) for some in buffers for one in some]


# ---------------------------------------------------------------------- both kinds


def test_a_missing_location_is_empty(location: Location) -> None:
    assert location.sizes() == {} and location.subfolders() == []
    location.remove("anything")


def test_a_written_file_has_its_size_and_bytes(location: Location) -> None:
    location.write("a.bin", pieces(DATA[:100], DATA[100:101], DATA[101:]))
    location.write("b.json", pieces(b"{}"))
    assert location.sizes() == {"a.bin": len(DATA), "b.json": 2}
    assert location.read("a.bin") == DATA
    assert location.read("a.bin", 0, 8) == DATA[:8]
    assert location.read("a.bin", 300, 557) == DATA[300:557]
    assert location.read("a.bin", len(DATA) - 3) == DATA[-3:]


def test_writing_again_replaces_the_file(location: Location) -> None:
    location.write("a.bin", pieces(DATA))
    location.write("a.bin", pieces(b"new"))
    assert location.sizes() == {"a.bin": 3} and location.read("a.bin") == b"new"


def test_ranges_fill_their_buffers_in_order(location: Location) -> None:
    location.write("a.bin", pieces(DATA))
    found = read_scattered(location, "a.bin", [(5, [3, 1, 200]), (1000, [1]), (2, [7]), (len(DATA) - 9, [4, 5])])
    expected = [(5, 8), (8, 9), (9, 209), (1000, 1001), (2, 9), (len(DATA) - 9, len(DATA) - 5), (len(DATA) - 5, None)]
    assert found == [DATA[first:last] for first, last in expected]


def test_a_range_may_have_more_buffers_than_one_system_call_takes(location: Location) -> None:
    location.write("a.bin", pieces(DATA))
    sizes = [1 + number % 4 for number in range(3000)]
    assert b"".join(read_scattered(location, "a.bin", [(17, sizes)])) == DATA[17 : 17 + sum(sizes)]


@pytest.mark.parametrize("wanted", [(len(DATA) - 3, [4]), (len(DATA) - 3, [3, 1]), (len(DATA), [1]), (10**9, [5])])
def test_a_file_that_is_too_short_is_an_error(location: Location, wanted: tuple[int, list[int]]) -> None:
    location.write("a.bin", pieces(DATA))
    with pytest.raises((EOFError, UserError)):
        read_scattered(location, "a.bin", [wanted])


def test_a_missing_file_raises_file_not_found(location: Location) -> None:
    location.write("a.bin", pieces(DATA))
    for read in (lambda: location.read("b.bin"), lambda: read_scattered(location, "b.bin", [(0, [1])])):
        with pytest.raises(FileNotFoundError):
            read()


def test_files_are_removed(location: Location) -> None:
    for name in ("a", "b", "c"):
        location.write(name, pieces(b"x"))
    location.remove("a")
    location.remove("a")
    assert set(location.sizes()) == {"b", "c"}


def test_subfolders_are_locations(location: Location) -> None:
    for name in ("b", "a"):
        open_location(f"{location}/{name}").write("manifest.json", pieces(b"{}"))
    location.write("file", pieces(b"x"))
    assert location.subfolders() == [f"{location}/a", f"{location}/b"]
    assert location.sizes() == {"file": 1}
    assert [open_location(inner).read("manifest.json") for inner in location.subfolders()] == [b"{}", b"{}"]


# ---------------------------------------------------------------------- folders


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = open_location(tmp_path / "store")
    assert isinstance(found, Folder)
    return found


def test_paths_may_be_written_in_any_common_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for text in ("~/store", "store", "./store", f"file://{tmp_path}/store", tmp_path / "store", f"{tmp_path}/store/"):
        open_location(text).write("a", pieces(b"x"))
        assert (tmp_path / "store" / "a").read_bytes() == b"x"
        (tmp_path / "store" / "a").unlink()


def test_written_files_are_readable_by_others(folder: Folder) -> None:
    folder.write("a.bin", pieces(DATA))
    assert stat.S_IMODE((folder.folder / "a.bin").stat().st_mode) == 0o644


def test_a_file_is_synced_before_the_rename_and_the_folder_after(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"file of {os.fstat(handle).st_size}")
        fsync(handle)

    def note_replace(*names: Any) -> None:
        done.append("rename")
        replace(*names)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    folder.write("a.bin", pieces(DATA))
    assert done == [f"file of {len(DATA)}", "rename", "folder"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "says"), [(errno.ENOSPC, "no space left on the disk"), (errno.EROFS, "can't be written")]
)
def test_a_failed_write_leaves_the_old_file_and_no_temporary_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, step: str, number: int, says: str
) -> None:
    folder.write("a.bin", pieces(b"old"))

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(UserError, match=says) as caught:
        folder.write("a.bin", pieces(DATA))
    assert "store.path" in str(caught.value)
    monkeypatch.undo()
    assert os.listdir(folder.folder) == ["a.bin"] and folder.read("a.bin") == b"old"


def test_an_interrupted_write_leaves_no_temporary_file(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        folder.write("a.bin", pieces(DATA))
    assert os.listdir(folder.folder) == []


@pytest.mark.parametrize("inner", ["", "deeper"])
def test_a_file_in_place_of_the_folder_is_reported(tmp_path: Path, inner: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"store\.path"):
        open_location(tmp_path / "file" / inner).write("a.bin", pieces(DATA))
    assert (tmp_path / "file").read_text() == "mine"


def test_temporary_files_are_not_listed(folder: Folder) -> None:
    folder.write("a.bin", pieces(DATA))
    (folder.folder / ".writing-a.bin@host-1-x").write_bytes(b"half")
    assert set(folder.sizes()) == {"a.bin"}


def test_a_file_that_vanishes_during_a_listing_is_ignored(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes and removes writing.json while this one lists the folder."""
    for name in ("a.bin", "writing.json"):
        folder.write(name, pieces(b"x"))
    scandir = os.scandir

    class Entries:
        def __init__(self, entries: Any) -> None:
            self.entries = entries

        def __enter__(self) -> Any:
            found = list(self.entries)
            (folder.folder / "writing.json").unlink(missing_ok=True)
            return iter(found)

        def __exit__(self, *_: Any) -> None:
            self.entries.close()

    monkeypatch.setattr(os, "scandir", lambda path: Entries(scandir(path)))
    assert folder.sizes() == {"a.bin": 1}


def test_free_space_is_known_for_a_folder_that_does_not_exist_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 7 if path == tmp_path else 0})())
    assert open_location(tmp_path / "a" / "b").free_bytes() == 7
    monkeypatch.chdir(tmp_path)
    assert open_location("a/b").free_bytes() == 7
    assert open_location("memory://a/b").free_bytes() is None


# ---------------------------------------------------------------------- reading as systems do it


def test_a_system_without_preadv_reads_the_same(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a.bin", pieces(DATA))
    wanted = [(5, [3, 1, 200]), (1000, [1] * 700), (2, [7])]
    expected = read_scattered(folder, "a.bin", wanted)
    monkeypatch.delattr(os, "preadv")
    assert read_scattered(folder, "a.bin", wanted) == expected
    with pytest.raises(EOFError):
        read_scattered(folder, "a.bin", [(len(DATA) - 3, [2, 2])])


@pytest.mark.parametrize("most", [1, 3, 64, 100])
def test_short_reads_are_continued(folder: Folder, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    folder.write("a.bin", pieces(DATA))
    calls = 0

    def short(handle: int, buffers: Sequence[memoryview], location: int) -> int:
        nonlocal calls
        calls += 1
        data, count = os.pread(handle, most, location), 0
        for buffer in buffers:
            some = data[count : count + len(buffer)]
            buffer[: len(some)] = some
            count += len(some)
        return count

    monkeypatch.setattr(os, "preadv", short)
    found = read_scattered(folder, "a.bin", [(5, [3, 64, 200, 1]), (1000, [100, 100])])
    assert found == [DATA[5:8], DATA[8:72], DATA[72:272], DATA[272:273], DATA[1000:1100], DATA[1100:1200]]
    assert calls >= 268 // most + 200 // most


# ---------------------------------------------------------------------- what killed processes leave


@pytest.fixture
def leave(folder: Folder) -> Callable[..., Path]:
    """leave(name, process, host=…) → a partial file, as written by a process."""
    folder.folder.mkdir()

    def make(name: str, process: int, host: str = "") -> Path:
        path = folder.folder / f".writing-{name}@{host or host_name()}-{process}-abc_12"
        path.write_bytes(b"half")
        return path

    return make


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


STEM = "states-000000000-000000003-"


def test_files_of_dead_processes_are_swept(folder: Folder, leave: Callable[..., Path]) -> None:
    path = leave(f"{STEM}0123456789abcdef.safetensors", dead_process())
    folder.sweep([STEM])
    assert not path.exists()


def test_files_of_living_processes_are_left(folder: Folder, leave: Callable[..., Path]) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        path = leave(f"{STEM}0123456789abcdef.safetensors", child.pid)
        folder.sweep([STEM])
        assert path.exists()
    finally:
        child.communicate(b"\n")
    folder.sweep([STEM])
    assert not path.exists()


def test_files_of_other_machines_and_other_ranges_are_left(folder: Folder, leave: Callable[..., Path]) -> None:
    """On a shared disk, processes of other machines can't be checked; other ranges belong to other processes."""
    process = dead_process()
    others = [
        leave(f"{STEM}0123456789abcdef.safetensors", process, "elsewhere"),
        leave("states-000000003-000000005-0123456789abcdef.safetensors", process),
    ]
    folder.sweep([STEM])
    assert all(path.exists() for path in others)


def test_a_sweep_lists_the_folder_once(
    folder: Folder, leave: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large store has thousands of shards, and a listing goes through all of them."""
    process, looks = dead_process(), 0
    stems = [f"states-{number:09d}-{number + 1:09d}-" for number in range(200)]
    left = [leave(f"{stem}0123456789abcdef.safetensors", process) for stem in stems[::50]]
    scandir = os.scandir

    def counted(path: Any) -> Any:
        nonlocal looks
        looks += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    folder.sweep(stems)
    assert 1 <= looks <= 3 and not any(path.exists() for path in left)


def test_temporary_names_match_the_sweep(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(os, "replace", lambda source, _: seen.append(Path(source).name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", dead_process)  # as written by a process that has since died
        folder.write(f"{STEM}0123456789abcdef.safetensors", pieces(DATA))
    assert os.listdir(folder.folder) == seen
    folder.sweep([STEM])
    assert os.listdir(folder.folder) == []


@pytest.mark.parametrize("host", ["my-machine", "a@b-c", "x-1-2"])
def test_any_host_name_works(folder: Folder, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    folder.folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", dead_process)
        left = folder.folder / f"{temporary(Path(STEM + 'x.safetensors'))}abc"
    left.write_bytes(b"half")
    folder.sweep([STEM])
    assert not left.exists()


# ---------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1/store", "https://x", "ftp://x", "sftp://x", "ssh://x", "github://org:repo@main/", "nosuch://x",
        "zip://a.zip::http://127.0.0.1/x", "simplecache::s3://bucket/x", "s3://bucket/x::http://127.0.0.1/", "s3a://x",
        "local:///tmp/x", "reference://x", "data://x", "HTTP://127.0.0.1", "://x",
    ],
)  # fmt: skip
def test_other_schemes_are_refused_before_any_request(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *_: pytest.fail("fsspec was asked"))
    with pytest.raises(
        UserError, match=r"is not the address of a store.*file://, s3://, gs://, az://, abfs:// or hf://"
    ):
        open_location(address)


def test_a_memory_store_is_for_tests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SCHEMES", [scheme for scheme in network.SCHEMES if scheme != "memory"])
    with pytest.raises(UserError, match="is not the address of a store"):
        open_location("memory://x")


@pytest.mark.parametrize(("address", "says"), [("s3://bucket/x", r"bertvision\[s3\]"), ("gs://bucket/x", "gcsfs")])
def test_a_missing_package_for_a_url_is_reported(monkeypatch: pytest.MonkeyPatch, address: str, says: str) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Please install gcsfs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(UserError, match=says):
        open_location(address)


def test_a_url_with_renames_shows_only_complete_files(tmp_path: Path) -> None:
    """On a server that shows incomplete files (SFTP, a mounted disk), files get a temporary name first."""
    location = Location(f"local://{tmp_path}/store")
    assert not location.atomic
    seen: list[list[str]] = []
    move = location.files.mv
    location.files.mv = lambda *names: (seen.append(os.listdir(tmp_path / "store")), move(*names))
    try:
        location.write("a.bin", pieces(DATA[:5], DATA[5:]))
    finally:
        del location.files.mv
    assert len(seen) == 1 and seen[0][0].startswith(".writing-a.bin")
    assert location.sizes() == {"a.bin": len(DATA)} and location.read("a.bin") == DATA


def test_a_failing_url_reports_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    location = open_location(f"memory://{uuid.uuid4()}")
    assert isinstance(location, Location)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the server is on fire\nTraceback")

    for name, act in {
        "ls": lambda: location.sizes(),
        "cat_file": lambda: location.read("a"),
        "cat_ranges": lambda: read_scattered(location, "a", [(0, [1])]),
        "pipe_file": lambda: location.write("a", pieces(b"x")),
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(type(location.files), name, fail)
            with pytest.raises(UserError, match="credentials") as caught:
                act()
        assert "on fire" in str(caught.value) and "Traceback" not in str(caught.value)
