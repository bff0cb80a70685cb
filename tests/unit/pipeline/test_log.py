"""metrics.jsonl: lines with checksums, damaged ones, and those of earlier versions."""

import json
import zlib
from pathlib import Path

import pytest

from bertvision.pipeline.log import LOG, append_line, read_log


def written(folder: Path) -> list[str]:
    return (folder / LOG).read_text(encoding="utf-8").splitlines()


def test_a_line_ends_with_the_checksum_of_the_rest(tmp_path: Path) -> None:
    append_line(tmp_path, "train", step=1, loss={"é": 0.5})
    (line,) = written(tmp_path)
    value = json.loads(line)
    content = line[: line.index(', "crc32"')] + "}"
    assert list(value)[-1] == "crc32" and int(value["crc32"], 16) == zlib.crc32(content.encode())
    assert read_log(tmp_path).lines == [{"event": "train", "step": 1, "loss": {"é": 0.5}}]


@pytest.mark.parametrize("byte", [b"1", b"s", b"5"])
def test_a_changed_line_is_skipped_and_counted(tmp_path: Path, byte: bytes) -> None:
    for step in (1, 2):
        append_line(tmp_path, "train", step=step, loss={"a": 0.5})
    first, second = (tmp_path / LOG).read_bytes().splitlines(keepends=True)
    at = first.index(b'"step"')
    (tmp_path / LOG).write_bytes(first[:at] + first[at:].replace(byte, b"7", 1) + second)
    log = read_log(tmp_path)
    assert [line["step"] for line in log.lines] == [2] and log.lost == 1


def test_lines_of_earlier_versions_are_read_and_cut_ones_counted(tmp_path: Path) -> None:
    assert read_log(tmp_path) == ([], 0)
    (tmp_path / LOG).write_text('{"event": "train", "step": 3, "loss": {"a": null}}\n{"event": "tra')
    log = read_log(tmp_path)
    assert [line["step"] for line in log.lines] == [3] and log.lost == 1


@pytest.mark.parametrize("line", ['{"event": "train", "step": "3", "loss": {}}', '{"event": 3}', "[]", '{"step": 3}'])
def test_lines_of_another_form_are_left_out(tmp_path: Path, line: str) -> None:
    (tmp_path / LOG).write_text(line + "\n")
    assert read_log(tmp_path) == ([], 1)
