import csv
import json
from pathlib import Path
from xml.etree import ElementTree

from bertvision.search.history import History, build_chart, write_history, write_picture
from bertvision.search.study import TriedMember

TRIED = [
    TriedMember(0, 0, {"head": "adapter", "size": 8, "lr": 1e-3}, "complete", 60.0, 2),
    TriedMember(1, 0, {"head": "learned_pooling", "lr": 2e-3}, "dropped", 75.0, 1),
    TriedMember(2, 0, {"head": "learned_pooling", "lr": 9.0}, "failed", None, 0),
    TriedMember(3, 1, {"head": "adapter", "size": 4, "lr": 5e-3}, "complete", 70.0, 2),
    TriedMember(4, 1, {"head": "adapter", "size": 4, "lr": 6e-3}, "dropped", 50.0, 2),
    TriedMember(5, 1, {"head": "adapter", "size": 4, "lr": 7e-3}, "complete", 70.0, 2),
]
HISTORY = History("rte", "accuracy", "one", 1.0, TRIED, {"0/sequences": 1.5, "1/sequences": 2.0, "1/tokens": 0.25})


def test_the_best_member_finished_and_is_the_first_in_a_tie() -> None:
    best = HISTORY.best()
    assert best is not None and best.number == 3, "the dropped one with 75 did not finish"
    assert [one.number for one in HISTORY.ranked()] == [3, 5, 0, 4, 1, 2]
    assert History("rte", "accuracy", "one", 1.0, TRIED[1:3], {}).best() is None


def test_csv_and_json_hold_every_member(tmp_path: Path) -> None:
    write_history(HISTORY, tmp_path)
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["number"] for row in rows] == list("012345")
    assert list(rows[0]) == [
        "number",
        "population",
        "head",
        "size",
        "lr",
        "state",
        "score",
        "rung",
        "seconds_population",
    ]
    assert (rows[1]["size"], rows[1]["state"], rows[1]["score"]) == ("", "dropped", "75.0")
    assert (rows[0]["seconds_population"], rows[4]["seconds_population"]) == ("1.5", "2.25")
    found = json.loads((tmp_path / "history.json").read_text())
    assert found["best"] == "member_003"
    assert [one["entry"] for one in found["members"]] == [one.entry for one in TRIED]


def test_the_table_shows_the_best_first() -> None:
    table = HISTORY.to_table()
    assert table.headings == ["member", "head", "size", "lr", "held-out accuracy", "state"]
    assert table.rows[0] == ["member_003", "adapter", "4", "0.005", "70.00", "complete"]
    assert [row[0] for row in table.rows] == ["member_003", "member_005", "member_000", "member_004", "member_001"]
    assert "3 complete, 2 dropped, 1 failed" in table.note


def test_the_chart_has_the_scores_and_the_best_so_far(tmp_path: Path) -> None:
    chart = build_chart(HISTORY).to_dict()
    assert len(chart["hconcat"]) == 2, "by number, and by learning rate"
    line = chart["hconcat"][0]["layer"][0]["data"]["values"]
    assert [point["score"] for point in line] == [60.0, 60.0, 60.0, 70.0, 70.0, 70.0]
    write_picture(HISTORY, tmp_path)
    svg = (tmp_path / "history.svg").read_text()
    ElementTree.fromstring(svg)
    assert all(word in svg for word in ("held-out accuracy", "learning rate", "adapter", "learned_pooling"))
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"history.svg", "history.png"}


def test_one_learning_rate_makes_no_second_panel() -> None:
    same = [TriedMember(n, 0, {"head": "adapter", "lr": 1e-3}, "complete", 50.0, 0) for n in range(3)]
    assert len(build_chart(History("rte", "accuracy", "one", 1.0, same, {})).to_dict()["hconcat"]) == 1
