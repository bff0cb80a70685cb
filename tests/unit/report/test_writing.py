"""The files of a report: what is there, raw values, and nothing left of an earlier one."""

import csv
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from sample_reports import HOSTILE, build_sample_report

from bertvision.errors import UserError
from bertvision.report.block import Block, Report, Section
from bertvision.report.writing import to_csv, write_report
from bertvision.tables import Column, Table


@pytest.fixture(scope="module")
def report() -> Report:
    pytest.importorskip("altair", reason="the report extra is not installed")
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    report = build_sample_report()
    return dataclasses.replace(report, sections=report.sections[:-1])  # the last one's pictures are all alike


@pytest.fixture(scope="module")
def folder(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert write_report(report, folder) == folder / "report.html"
    return folder


def refuse(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")


def only(*blocks: Block) -> Report:
    return Report("Small", [], [], [Section("One", list(blocks))])


def table(rows: list[list[Any]]) -> Table:
    return Table([Column("name"), Column("value", 1)], rows)


def test_each_block_has_files_of_its_table_and_of_its_picture_and_no_others(report: Report, folder: Path) -> None:
    expected = set()
    for block in report.blocks():
        expected |= {f"{block.key}.{ending}" for ending in ("json", "csv") if block.table is not None}
        expected |= {f"{block.key}.{ending}" for ending in ("svg", "png") if block.picture is not None}
    assert len(expected) == 2 * 7 + 2 * 8 + 2 * 3
    assert {path.name for path in (folder / "report").iterdir()} == expected
    assert {path.name for path in folder.iterdir()} == {"report", "report.html", "report.md", "report.json"}


def test_pictures_are_svg_and_png_of_twice_the_size_on_white(folder: Path) -> None:
    svg = (folder / "report" / "gains.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg") and 'width="640"' in svg and 'fill="#ffffff"' in svg
    png = (folder / "report" / "gains.png").read_bytes()
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20], "big") == 2 * 640


def test_no_json_file_holds_nan(report: Report, folder: Path) -> None:
    paths = [folder / "report.json", *(folder / "report").glob("*.json")]
    assert len(paths) == 1 + sum(block.table is not None for block in report.blocks())
    for path in paths:
        json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    scores = json.loads((folder / "report" / "scores.json").read_text(encoding="utf-8"))
    assert scores[1]["±"] is None and scores[1]["accuracy"] == 58.12274 and scores[1]["parameters"] == 22_715_010


def test_report_json_holds_every_sentence_and_every_value(report: Report, folder: Path) -> None:
    values = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    blocks = [block for section in values["sections"] for block in section["blocks"]]
    assert [block["key"] for block in blocks] == [block.key for block in report.blocks()]
    assert [block["sentences"] for block in blocks] == [[*block.sentences, *block.after] for block in report.blocks()]
    assert values["finding"] == report.finding and blocks[0]["example"]["group"] == "Both are right"
    assert "by -2.5" in blocks[0]["sentences"][1], "programs read a hyphen"
    assert [len(block.get("rows", [])) for block in blocks] == [
        len(block.table.rows) if block.table else 0 for block in report.blocks()
    ]
    assert all((folder / block["picture"]).is_file() for block in blocks if "picture" in block)


def test_csv_gives_back_raw_values_whatever_they_hold(folder: Path) -> None:
    rows: list[list[Any]] = [[HOSTILE, 0.123456789012345], ['a "b", c\nd', None], ["é", float("nan")]]
    read = list(csv.reader(to_csv(table(rows)).splitlines(keepends=True)))
    assert read == [["name", "value"], [HOSTILE, "0.123456789012345"], ['a "b", c\nd', ""], ["é", ""]]


def test_files_of_blocks_that_are_gone_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    write_report(only(Block("old", "Old", table=table([["a", 1]]))), tmp_path)
    (tmp_path / "report" / "notes.txt").write_text("mine")
    write_report(only(Block("new", "New", table=table([["b", 2]]))), tmp_path)
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["new.csv", "new.json", "notes.txt"]


def test_a_report_without_pictures_needs_no_plotting_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    page = write_report(only(Block("words", "Words", ["Only words."])), tmp_path)
    assert "Only words." in page.read_text(encoding="utf-8")


def test_a_missing_plotting_package_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UserError, match=r"vl-convert: pip install 'bertvision\[report\]'"):
        write_report(only(Block("chart", "Chart", picture={"mark": "bar"})), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["../up", "a b", "", "a.svg", "1"])
def test_a_key_that_is_no_file_name_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="file name"):
        write_report(only(Block(key, "Bad")), tmp_path)


def test_two_blocks_with_one_key_are_refused(tmp_path: Path) -> None:
    block = Block("same", "One")
    with pytest.raises(AssertionError, match="share a key"):
        write_report(only(block, dataclasses.replace(block, title="Two")), tmp_path)
