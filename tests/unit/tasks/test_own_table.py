"""A user's labelled table: columns and kind guessed and named, every mistake reported with its rows."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertvision.errors import UserError
from bertvision.kinds import LABEL, SCORE
from bertvision.tasks.files import Columns
from bertvision.tasks.own_table import OwnTable, check_same_labels, from_columns, from_frame, read_own_table

WORDS = ["the card is lost", "where is my money", "open an account", "the card is gone"]


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def table(tmp_path: Path, header: str, rows: list[str], name: str = "train.csv", **options: Any) -> OwnTable:
    return read_own_table(write(tmp_path / name, header, *rows), **options)


def twenty(*values: object) -> list[str]:
    """Twenty rows "text N,value", values in turn."""
    return [f"text number {n},{values[n % len(values)]}" for n in range(20)]


def fails(message: str) -> Any:
    return pytest.raises(UserError, match=message)


# ---------------------------------------------------------------------- columns


def test_columns_are_guessed_by_name_and_named_in_a_note(tmp_path: Path) -> None:
    found = table(tmp_path, "Message,Intent", twenty("card", "money"))
    assert found.columns == Columns("Message", None, "Intent", None)
    assert found.texts[:2] == ["text number 0", "text number 1"] and found.labels == ["card", "money"] * 10
    assert (found.kind, found.scores, found.pairs, found.weights, found.total) == (LABEL, None, None, None, 20)
    assert found.ids[:2] == ["2", "3"] and found.places[0].endswith("train.csv, line 2")
    assert found.notes == [
        "Using column 'Message' as text and 'Intent' as label (2 labels). Change this with --text and --label."
    ]


@pytest.mark.parametrize(
    "header, row, text, label",
    [
        ("id,text,label", "1,a b c,x", "text", "label"),
        ("title,text,label,score", "t,a b c,x,1", "text", "label"),
        ("what,said", "x,some words here", "said", "what"),
        ("what,review", "x,some words here", "review", "what"),
        ("short,long words,class", "ab,some longer words,x", "long words", "class"),
        ("Unnamed: 0,body,topic", "0,some words,x", "body", "topic"),
    ],
)
def test_a_column_is_found_by_its_name_or_by_its_values(
    header: str, row: str, text: str, label: str, tmp_path: Path
) -> None:
    rows = [row.replace("words", f"words {n}").replace("b c", f"b c {n}") for n in range(6)]
    second = [line.replace(",x", ",y").replace("x,", "y,") for line in rows]
    found = table(tmp_path, header, rows + second)
    assert (found.columns.text, found.columns.label) == (text, label)


def test_given_columns_are_used_without_a_note(tmp_path: Path) -> None:
    found = table(tmp_path, "text,other,label", ["a,b c,x", "d,e f,y"] * 2, text="other", label="label")
    assert found.texts[:2] == ["b c", "e f"] and found.notes == []


@pytest.mark.parametrize(
    "header, row, options, message",
    [
        ("message,comment,label", "a,b,x", {}, "which column is the text.*'message' or 'comment'.*--text"),
        ("text,intent,topic", "a,b,x", {}, "which column is the label.*'intent' or 'topic'.*--label"),
        ("one,two,three", "a,b,c", {}, "can't tell which column is the label.*one, two, three.*--label COLUMN"),
        ("a,b,label", "ab,cd,x", {}, "can't tell which column is the text.*a, b.*--text COLUMN"),
        ("text,label", "a,x", {"label": "lable"}, r"no column 'lable' \(--label\): did you mean 'label'"),
        ("text,label", "a,x", {"text_pair": "pair"}, r"no column 'pair' \(--text-pair\)"),
        ("text,label", "a,x", {"text": "label", "label": "label"}, "both name column 'label'"),
        ("text,text", "a,x", {}, "two columns have the same name"),
    ],
)
def test_columns_that_can_not_be_guessed_are_asked_for(
    header: str, row: str, options: dict[str, str], message: str, tmp_path: Path
) -> None:
    with fails(message):
        table(tmp_path, header, [row] * 4, **options)


@pytest.mark.parametrize("names", [("sentence1", "sentence2"), ("question", "passage"), ("text", "text_pair")])
def test_pairs_are_used_if_the_columns_are_exactly_a_known_pair(names: tuple[str, str], tmp_path: Path) -> None:
    found = table(tmp_path, f"{names[0]},{names[1]},label", ["a,b,x", "c,d,y"])
    assert (found.texts, found.pairs) == (["a", "c"], ["b", "d"])
    assert found.notes[0] == (
        f"Using columns '{names[0]}' and '{names[1]}' as texts and 'label' as label (2 labels). "
        "Change this with --text, --text-pair and --label."
    )
    alone = table(tmp_path, f"{names[0]},{names[1]},label", ["a,b,x", "c,d,y"], text=names[0])
    assert alone.pairs is None


def test_the_label_column_is_not_taken_for_a_second_text(tmp_path: Path) -> None:
    found = table(tmp_path, "question,topic", ["who is it,a", "what is it,b"])
    assert found.pairs is None and found.columns.label == "topic"


# ---------------------------------------------------------------------- kind


@pytest.mark.parametrize(
    "values, kind",
    [
        ([1.5, 2], SCORE),
        (list(range(20)), SCORE),  # one row each
        ([1, 2, 3, 4], LABEL),  # five rows each
        ([1, 2, 3, 4, 5], SCORE),  # four rows each
        ([0, 1], LABEL),
        (["1e3", "2e-3"], SCORE),
        (["true", "false"], LABEL),
        (["007", "008", "009"], LABEL),
        (["2024-05-01", "2024-06-01"], LABEL),
        (["1", "two"], LABEL),
    ],
)
def test_the_kind_is_guessed_from_the_values(values: list[object], kind: object, tmp_path: Path) -> None:
    assert table(tmp_path, "text,label", twenty(*values)).kind is kind


def test_more_than_twenty_whole_numbers_are_scores(tmp_path: Path) -> None:
    for distinct, kind in ((20, LABEL), (21, SCORE)):
        found = table(tmp_path, "text,label", [f"text {n},{n % distinct}" for n in range(distinct * 5)])
        assert found.kind is kind


def test_the_guess_of_a_kind_is_noted_with_the_way_to_change_it(tmp_path: Path) -> None:
    stars = table(tmp_path, "review,stars", twenty(1, 2, 3, 4))
    assert stars.notes[0].startswith("Using column 'review' as text and 'stars' as label (4 labels).")
    assert (
        "4 different whole numbers; each is treated as a label" in stars.notes[1] and "--kind score" in stars.notes[1]
    )
    scores = table(tmp_path, "review,stars", twenty(1, 2, 3, 4), kind="score")
    assert scores.scores == [1.0, 2.0, 3.0, 4.0] * 5 and scores.labels is None
    assert "as score (from 1 to 4)" in scores.notes[0] and len(scores.notes) == 1
    floats = table(tmp_path, "review,stars", twenty(1.5, -2))
    assert "'stars' as score (from -2 to 1.5)" in floats.notes[0] and "--kind label" in floats.notes[1]
    dates = table(tmp_path, "text,label", twenty("01/05/2024", "02/05/2024"))
    assert "holds dates; each of the 2 dates is treated as a label" in dates.notes[1]


def test_truth_values_in_json_lines_are_labels(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"t {n}", "label": n % 2 == 0}) for n in range(4)]
    assert read_own_table(write(tmp_path / "t.jsonl", *rows)).labels == ["true", "false"] * 2


@pytest.mark.parametrize(
    "values, message",
    [
        ([f"user{n}" for n in range(20)], "20 different values in 20 rows.*'user0'.*ids or free text, not labels"),
        ([f"user{n}" for n in range(11)], "11 different values in 20 rows.*--label COLUMN"),
        ([f"2024-05-{n + 1:02}" for n in range(20)], "look like dates, not labels"),
        ([f"2024-05-{n + 1:02}T10:00:00Z" for n in range(20)], "look like dates, not labels"),
        ([f'"{n},5"' for n in range(20)], "holds numbers with a comma, such as '0,5'.*decimal point"),
        (["same"], r"only one label, 'same' \(20 rows\). At least two"),
        ([3], r"only one label, '3' \(20 rows\)"),
    ],
)
def test_a_column_without_labels_is_refused(values: list[object], message: str, tmp_path: Path) -> None:
    with fails(message):
        table(tmp_path, "text,label", twenty(*values))


def test_a_few_words_among_many_numbers_are_named(tmp_path: Path) -> None:
    rows = [f"text {n},{n + 0.5}" for n in range(40)]
    with fails("column 'label' holds numbers, but also 'high' and 'inf'. Correct these cells"):
        table(tmp_path, "text,label", [*rows, "a,high", "b,inf", "c,NA"])


def test_a_file_without_a_header_is_refused(tmp_path: Path) -> None:
    rows = [f"{('ham', 'spam')[n % 2]},text number {n}" for n in range(8)]
    with fails("train.csv seems to have no header: 'ham' is in the first line and also a label"):
        table(tmp_path, rows[0], rows[1:])
    with fails("train.csv has no column for the label, only 'text'"):
        table(tmp_path, "text", ["a", "b"])


def test_parquet_has_rows_instead_of_lines(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"message": [*WORDS[:3], None], "intent": ["a", "b", "a", "b"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    with fails(r"t.parquet: 1 row has no text in column 'message' \(row 4\)"):
        read_own_table(tmp_path / "t.parquet")
    found = read_own_table(tmp_path / "t.parquet", skip_empty=True)
    assert (found.texts, found.labels, found.ids) == (WORDS[:3], ["a", "b", "a"], ["1", "2", "3"])
    with fails("no.parquet is not a valid Parquet file"):
        read_own_table(write(tmp_path / "no.parquet", "text,label", "a,b"))
    with fails("there is no file .*gone.parquet"):
        read_own_table(tmp_path / "gone.parquet")
    with fails(r"t.xlsx ends in '.xlsx', expected .csv, .tsv, .jsonl, .parquet.*Save the sheet as CSV"):
        read_own_table(tmp_path / "t.xlsx")


def test_half_as_many_labels_as_rows_are_labels(tmp_path: Path) -> None:
    assert len(set(table(tmp_path, "text,label", twenty(*(f"user{n}" for n in range(10)))).labels or [])) == 10


def test_a_kind_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with fails("train.csv, line 3: column 'label' must hold numbers, found 'high'.*--kind label"):
        table(tmp_path, "text,label", twenty("1", "high"), kind="score")
    with fails("--kind scores: did you mean 'score'"):
        table(tmp_path, "text,label", twenty("1", "2"), kind="scores")
    with fails("all numbers in column 'label' are the same, 3"):
        table(tmp_path, "text,label", twenty(3), kind="score")
    assert table(tmp_path, "text,label", twenty("007", "1"), kind="score").scores == [7.0, 1.0] * 10


# ---------------------------------------------------------------------- gaps


def test_rows_without_text_or_label_are_listed_or_skipped(tmp_path: Path) -> None:
    rows = ["a,x", " ,x", "b,y", "c,", "d,y", *([",x"] * 7), "e,x"]
    with fails(
        r"train.csv: 8 rows have no text in column 'text' \(lines 3, 7, 8, 9, 10 and 3 more\); "
        r"1 row has no label in column 'label' \(line 5\). Fill them in, or leave these rows out with --skip-empty."
    ):
        table(tmp_path, "text,label", rows)
    found = table(tmp_path, "text,label", rows, skip_empty=True)
    assert (found.texts, found.labels, found.total) == (["a", "b", "d", "e"], ["x", "y", "y", "x"], 13)
    assert found.ids == ["2", "4", "6", "14"]
    assert found.notes[1].startswith("Left out 9 rows of train.csv: 8 rows have no text")


def test_a_table_of_gaps_is_refused(tmp_path: Path) -> None:
    with fails("train.csv has no rows with both a text and a label"):
        table(tmp_path, "text,label", [",x", "a,"], skip_empty=True)
    with fails("train.csv has no rows"):
        table(tmp_path, "text,label", [])


def test_na_is_a_text_and_a_label_but_a_gap_among_numbers(tmp_path: Path) -> None:
    found = table(tmp_path, "text,label", ["NA,NA", "nan,no", "a,NA", "b,no"])
    assert (found.texts, found.labels) == (["NA", "nan", "a", "b"], ["NA", "no", "NA", "no"])
    with fails(r"1 row has no number in column 'label' \(line 3\)"):
        table(tmp_path, "text,label", ["a,1.5", "b,NA", "c,2"])
    found = table(tmp_path, "text,label", ["a,1.5", "b,NA", "c,2"], skip_empty=True)
    assert found.scores == [1.5, 2.0] and found.notes[-1].startswith("Left out 1 row of train.csv")


def test_an_empty_second_text_is_a_gap(tmp_path: Path) -> None:
    with fails(r"1 row has no text in column 'passage' \(line 3\)"):
        table(tmp_path, "question,passage,label", ["a,b,x", "c,,y"])


def test_missing_keys_in_json_lines_are_gaps(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": "x"}, {"text": "b"}, {"text": None, "label": "y"}, {"text": "c", "label": "y"}]
    with fails(r"no text in column 'text' \(line 3\); 1 row has no label in column 'label' \(line 2\)"):
        read_own_table(write(tmp_path / "t.jsonl", *map(json.dumps, rows)))
    with fails("t.jsonl, line 1: column 'text' must be text, found 3"):
        read_own_table(write(tmp_path / "t.jsonl", '{"text": 3, "label": "x"}'))
    with fails(r"t.jsonl, line 1: column 'label' must hold one label or number per row, found \['x'\]"):
        read_own_table(write(tmp_path / "t.jsonl", '{"text": "a", "label": ["x"]}'))


# ---------------------------------------------------------------------- notes on labels, weights, ids


def test_labels_that_look_alike_or_are_rare_and_contradictions_are_noted(tmp_path: Path) -> None:
    rows = [*(f"text {n},Card" for n in range(12)), *(f"other {n},card " for n in range(3)), "a,x", "a,y", "b,y"]
    notes = table(tmp_path, "text,label", rows).notes
    assert notes[1:] == [
        "1 label in column 'label' has only one row: 'x'.",
        "'Card' and 'card ' look alike: 12 and 3 rows. If they are the same label, write them the same way.",
        "2 rows have the same text as another row but a different label (1 text). "
        "They can't all be predicted correctly.",
    ]


def test_weights_are_numbers_of_zero_or_more(tmp_path: Path) -> None:
    found = table(tmp_path, "text,label,w", ["a,x,1", "b,y,0.5", "c,x,0"], weight="w")
    assert found.weights == [1.0, 0.5, 0.0]
    for wrong in ("-1", "", "nan", "much"):
        with fails(f"line 3: column 'w' must hold weights, numbers of 0 or more, found '{wrong}'"):
            table(tmp_path, "text,label,w", ["a,x,1", f"b,y,{wrong}"], weight="w")
    with fails("all weights are 0"):
        table(tmp_path, "text,label,w", ["a,x,0", "b,y,0"], weight="w")


def test_ids_are_those_of_the_id_column(tmp_path: Path) -> None:
    assert table(tmp_path, "ID,text,label", ["u1,a,x", "u2,b,y"]).ids == ["u1", "u2"]
    repeated = table(tmp_path, "id,text,label", ["u1,a,x", "u1,b,y"])
    assert repeated.ids == ["2", "3"] and "repeated or empty ids" in repeated.notes[-1]
    with fails("more than once: u1"):
        table(tmp_path, "n,text,label", ["u1,a,x", "u1,b,y"], id="n")
    with fails("line 3: column 'n' is empty"):
        table(tmp_path, "n,text,label", ["u1,a,x", ",b,y"], id="n")


# ---------------------------------------------------------------------- samples


def test_a_sample_has_the_asked_size_and_keeps_rare_labels(tmp_path: Path) -> None:
    rows = [f"text {n},{'rare' if n in (500, 900) else 'one' if n == 700 else 'xy'[n % 2]}" for n in range(1000)]
    found = table(tmp_path, "text,label", rows, most_rows=50)
    counts = Counter(found.labels)
    assert len(found) == 50 and found.total == 1000
    assert (counts["rare"], counts["one"]) == (2, 1) and min(counts["x"], counts["y"]) >= 2
    assert "train.csv has 1,000 rows; 50 were drawn at random (change this with --rows)." in found.notes
    assert [int(place.rsplit(" ", 1)[1]) for place in found.places] == sorted(map(int, found.ids))
    assert found.texts == table(tmp_path, "text,label", rows, most_rows=50).texts
    assert found.texts != table(tmp_path, "text,label", rows, most_rows=50, seed=1).texts
    assert len(table(tmp_path, "text,label", rows, most_rows=1000)) == 1000


def test_a_sample_is_uniform(tmp_path: Path) -> None:
    rows = [f"text {n},{'xy'[n % 2]}" for n in range(100)]
    path = write(tmp_path / "t.csv", "text,label", *rows)
    counts = Counter(text for seed in range(400) for text in read_own_table(path, most_rows=10, seed=seed).texts)
    # Each row is drawn in 40 of 400 samples on average, with a standard deviation of 6.
    assert len(counts) == 100 and max(abs(count - 40) for count in counts.values()) < 30


def test_a_sample_of_scores_has_the_asked_size(tmp_path: Path) -> None:
    rows = [f"text {n},{n + 0.5}" for n in range(300)]
    found = table(tmp_path, "text,label", rows, most_rows=100)
    assert len(found) == 100 and found.kind is SCORE
    with fails("--rows must be at least 2"):
        table(tmp_path, "text,label", rows, most_rows=1)


# ---------------------------------------------------------------------- data in memory


def test_columns_in_memory_give_the_same_table_as_a_file(tmp_path: Path) -> None:
    labels = ["a", "b"] * 2
    expected = table(tmp_path, "text,label", [f"{t},{n}" for t, n in zip(WORDS, labels, strict=True)])
    for texts, targets in ((WORDS, labels), (tuple(WORDS), np.array(labels)), (np.array(WORDS), iter(labels))):
        found = from_columns(texts, targets)
        assert (found.texts, found.labels, found.kind) == (expected.texts, expected.labels, LABEL)
        assert found.ids == ["1", "2", "3", "4"] and found.places[2] == "row 3" and found.notes == []
    scores = from_columns(WORDS, np.array([0.5, 1, 2, 3]), weights=np.ones(4), ids=range(4))
    assert scores.scores == [0.5, 1.0, 2.0, 3.0] and scores.weights == [1.0] * 4 and scores.ids == list("0123")
    assert from_columns(WORDS, [np.int64(0), np.int64(1)] * 2).labels == ["0", "1", "0", "1"]
    pairs = from_columns([("a", "b"), ("c", "d")], ["x", "y"])
    assert (pairs.texts, pairs.pairs) == (["a", "c"], ["b", "d"])
    assert from_columns(["a", "c"], ["x", "y"], pairs=["b", "d"]).pairs == ["b", "d"]


@pytest.mark.parametrize(
    "texts, targets, message",
    [
        (["a", ""], ["x", "y"], r"1 row has no text in column 'texts' \(row 2\).*skip_empty=True"),
        (["a", "b"], ["x", None], r"1 row has no label in column 'labels' \(row 2\)"),
        (["a", "b"], [1.5, float("nan")], r"1 row has no label in column 'labels' \(row 2\)"),
        (["a", "b"], ["x", "x"], "only one label, 'x'"),
        (["a", 3], ["x", "y"], "row 2: column 'texts' must be text, found 3"),
        (["a", "b"], ["x"], "texts has 2, labels has 1"),
        ("ab", ["x", "y"], "texts must be a list with one entry per row, found str"),
        (["a", "b"], 3, "labels must be a list with one entry per row, found int"),
        ([("a", "b"), "c"], ["x", "y"], "row 2: expected a pair of texts as in row 1, found 'c'"),
        ([], [], "the data has no rows"),
    ],
)
def test_data_in_memory_has_the_same_errors(texts: Any, targets: Any, message: str) -> None:
    with fails(message):
        from_columns(texts, targets)


def test_data_frames_and_series() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"message": WORDS, "intent": ["a", "b", "a", None]})
    with fails(r"1 row has no label in column 'intent' \(row 4\).*skip_empty=True"):
        from_frame(frame)
    found = from_frame(frame, skip_empty=True)
    assert found.labels == ["a", "b", "a"] and "Change this with text=… and label=…." in found.notes[0]
    assert from_columns(frame["message"][:3], frame["intent"][:3]).labels == ["a", "b", "a"]
    categories = frame["intent"][:3].astype("category")
    assert from_columns(frame["message"][:3], categories).labels == ["a", "b", "a"]
    missing = pandas.Series([1, None, 2, 3], dtype="Int64")
    with fails(r"no label in column 'labels' \(row 2\)"):
        from_columns(WORDS, missing)
    with fails("texts must be one column, found a table"):
        from_columns(frame, ["a"] * 4)
    with fails("expected a data frame, found list"):
        from_frame(WORDS)


# ---------------------------------------------------------------------- train and dev


def test_labels_that_only_dev_has_are_refused(tmp_path: Path) -> None:
    train = table(tmp_path, "text,label", [f"text {n},{'xyz'[n % 3]}" for n in range(12)])
    rows = [*(f"new {n},x" for n in range(38)), "text 0,x", "old,y"]
    dev = table(tmp_path, "text,label", rows, "dev.csv", like=train)
    assert check_same_labels(train, dev) == ["dev.csv has no rows for 1 label of train.csv: 'z'."]
    more = table(tmp_path, "text,label", [*rows, "text 1,y", "text 2,x"], "dev.csv", like=train)
    assert "3 of the 42 texts in dev.csv also occur in train.csv." in check_same_labels(train, more)[1]
    with fails(r"dev.csv has 1 label that train.csv lacks: 'w' \(2 rows\). Labels without training rows"):
        check_same_labels(train, table(tmp_path, "text,label", ["a,w", "b,w", "c,x"], "dev.csv", like=train))


def test_a_dev_table_has_the_columns_and_the_kind_of_train(tmp_path: Path) -> None:
    train = table(tmp_path, "message,intent", twenty(1, 2))
    dev = table(tmp_path, "message,intent,text,label", ["a,1,b,c", "d,1,e,f"], "dev.csv", like=train)
    assert (dev.texts, dev.labels, dev.notes) == (["a", "d"], ["1", "1"], [])
    with fails(r"dev.csv: there is no column 'intent' \(--label\)"):
        table(tmp_path, "message,label", ["a,1"], "dev.csv", like=train)


# ---------------------------------------------------------------------- delimiters


@pytest.mark.parametrize(
    "name, mark, note",
    [
        ("t.csv", ";", "t.csv is separated by semicolons, not commas."),
        ("t.csv", "\t", "t.csv is separated by tabs, not commas."),
        ("t.csv", "|", "t.csv is separated by vertical bars, not commas."),
        ("t.tsv", ",", "t.tsv is separated by commas, not tabs."),
    ],
)
def test_a_file_with_another_delimiter_is_read(name: str, mark: str, note: str, tmp_path: Path) -> None:
    rows = [mark.join(["message", "intent"]), *(mark.join([f'"text{mark} {n}"', "xy"[n % 2]]) for n in range(6))]
    found = read_own_table(write(tmp_path / name, *rows))
    assert found.texts[0] == f"text{mark} 0" and found.labels == ["x", "y"] * 3
    assert found.notes[0] == note


def test_random_tables_are_read_back(tmp_path: Path) -> None:
    """Any text that is not blank, and any label with two rows or more."""
    import csv

    draw = random.Random(0)
    texts = ["".join(draw.choices('ab ,;"\n\té😀', k=draw.randint(1, 12))) + "." for _ in range(200)]
    labels = [draw.choice(["yes", "no, never", 'a "b"']) for _ in texts]
    with (tmp_path / "t.csv").open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([("text", "label"), *zip(texts, labels, strict=True)])
    found = read_own_table(tmp_path / "t.csv")
    assert (found.texts, found.labels) == (texts, labels)
