import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision import cli
from bertvision.errors import UserError
from bertvision.tasks import TaskConfig, text_files
from bertvision.tasks.text_files import find_file, plain_suffix, read_json, read_lines, reading_up_to

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)))


@given(st.lists(LINE, min_size=1), st.sampled_from(["\n", "\r\n"]))
def test_lines_end_only_at_newlines(tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str):
    lines = ["first", *lines, "last"]
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(end.join(lines).encode() + end.encode())
    assert list(read_lines(path)) == list(enumerate(lines, start=1))


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(tmp_path / "a.json") == [1]
    assert list(read_lines(tmp_path / "a.json")) == [(1, "[1]")]


@pytest.mark.parametrize("pack, ending", [(gzip.compress, ".gz"), (lzma.compress, ".xz")])
def test_a_truncated_compressed_file_is_named(pack, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.json{ending}"
    data = pack(bytes(range(32, 120)) * 1000)
    path.write_bytes(data[: len(data) // 2])
    for read in (read_json, lambda path: list(read_lines(path))):
        with pytest.raises(UserError, match=f"a.json{ending} is truncated"):
            read(path)


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_file_that_is_not_compressed_at_all_is_named(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"a{ending}").write_bytes(b"plain text")
    with pytest.raises(UserError, match=f"a{ending} is not a valid {ending} file"):
        list(read_lines(tmp_path / f"a{ending}"))


def test_bad_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.json"
    path.write_bytes(b'{"a": 1,\n"caf\xe9": 2}')
    for read in (read_json, lambda path: list(read_lines(path))):
        with pytest.raises(UserError, match="latin.json is not UTF-8: invalid byte 0xe9 at line 2, byte 5"):
            read(path)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf", b"  \r\n"])
def test_an_empty_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    for read in (read_json, lambda path: list(read_lines(path))):
        with pytest.raises(UserError, match="a.json is empty"):
            read(tmp_path / "a.json")


def test_a_missing_file_and_a_folder_have_different_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(UserError, match="is a folder"):
        list(read_lines(tmp_path))


def test_broken_json_names_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1,\n "b" 2}')
    with pytest.raises(UserError, match="a.json is not valid JSON: .* at line 2, column 6"):
        read_json(tmp_path / "a.json")


def test_a_plain_file_is_preferred_to_a_compressed_one(tmp_path: Path) -> None:
    (tmp_path / "a.tsv.gz").touch()
    assert find_file(tmp_path, "a.tsv") == tmp_path / "a.tsv.gz"
    (tmp_path / "a.tsv").touch()
    assert find_file(tmp_path, "a.tsv") == tmp_path / "a.tsv"
    assert find_file(tmp_path, "b.tsv") is None


def test_the_format_is_the_extension_before_the_compression() -> None:
    assert [plain_suffix(Path(name)) for name in ("a.csv", "a.b.CSV.gz", "a.jsonl.xz", "a")] == [
        ".csv",
        ".csv",
        ".jsonl",
        "",
    ]


def peak_of(read: Callable[[], Any], words: str) -> float:
    """The MB that a refused read takes."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=words):
            read()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pack, ending", [(gzip.compress, ".gz"), (lzma.compress, ".xz"), (bytes, "")])
def test_a_file_that_is_one_endless_line_is_refused_in_bounded_memory(pack: Any, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.csv{ending}"
    path.write_bytes(pack(b"text,label\n" + b"a" * 200_000_000))
    assert peak_of(lambda: list(read_lines(path)), "a.csv.*, line 2: it has more than 16 MB") < 60


@pytest.mark.parametrize("pack, ending", [(gzip.compress, ".gz"), (lzma.compress, ".xz"), (bytes, "")])
def test_what_a_file_takes_is_bounded_with_a_setting_to_raise_it(pack: Any, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.csv{ending}"
    path.write_bytes(pack(b"ab,c\n" * 10_000))  # 505 bytes each
    words = "a.csv.*, line 1981: the file takes more than the 1 MB allowed.*task.most_megabytes.*--most-megabytes"
    with reading_up_to(1):
        assert peak_of(lambda: list(read_lines(path)), words) < 20  # 1,000,000 / 505 = 1,980.2
    with reading_up_to(6):
        assert len(list(read_lines(path))) == 10_000


@pytest.mark.parametrize("pack, ending", [(gzip.compress, ".gz"), (lzma.compress, ".xz"), (bytes, "")])
def test_a_json_document_counts_its_items(pack: Any, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.json{ending}"
    path.write_bytes(pack(b"[" + b"[]," * 1_000_000 + b"1]"))
    with reading_up_to(50):
        assert peak_of(lambda: read_json(path), "takes more than the 50 MB allowed") < 20
    with reading_up_to(140):  # 3 bytes and two items of 64 bytes, a million times
        assert len(read_json(path)) == 1_000_001


@pytest.mark.parametrize(
    ("text", "words"),
    [("[" * 100_000, "nested too deeply"), ("[" + "9" * 5000 + "]", "too many digits"), ("[1", "at line 1, column 3")],
)
def test_json_that_python_cannot_hold_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=f"a.json is not valid JSON: .*{words}"):
        read_json(tmp_path / "a.json")


def test_several_xz_streams_with_padding_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"a\n") + bytes(8) + lzma.compress(b"b\n" * 3_000_000) + bytes(4))
    found = [line for _, line in read_lines(path)]
    assert found[0] == "a" and len(found) == 3_000_001 and set(found[1:]) == {"b"}


def test_an_xz_file_may_not_ask_for_more_memory_than_any_level_needs(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    dictionary = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    path.write_bytes(lzma.compress(b"a\n", filters=dictionary))
    with pytest.raises(UserError, match="a.txt.xz is not a valid .xz file: Memory usage limit exceeded"):
        list(read_lines(path))
    (tmp_path / "b.xz").write_bytes(lzma.compress(b"a\n", preset=9 | lzma.PRESET_EXTREME))
    assert list(read_lines(tmp_path / "b.xz")) == [(1, "a")]


def test_the_longest_line_allowed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MOST_LINE", 10)
    (tmp_path / "a").write_bytes(b"123456789\n" * 2)
    assert len(list(read_lines(tmp_path / "a"))) == 2
    (tmp_path / "a").write_bytes(b"123456789\n1234567890\n")
    with pytest.raises(UserError, match="line 2: it has more than"):
        list(read_lines(tmp_path / "a"))


def test_the_command_line_has_the_same_default_limit() -> None:
    """It has its own copy, so that --help is fast."""
    assert cli.MOST_MEGABYTES == text_files.MOST_MEGABYTES == TaskConfig.most_megabytes
