import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.errors import UserError
from bertvision.tasks.text_files import find_file, plain_suffix, read_json, read_lines

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
