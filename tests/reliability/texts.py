"""Odd texts and values of wrong types for a fitted model, its estimator and the command `predict`."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from typer.testing import CliRunner

import bertvision as bv
from bertvision.cli import app
from tests.reliability.judging import PYTHON, judge
from tests.reliability.made import fit_model
from tests.reliability.nasty import nasty_text, nasty_value
from tests.reliability.trials import Outcome

NAME, TRIALS, SLICE = "texts", 1000, 42
ABOUT = "Texts of 1 MB, null characters, lone surrogates, right-to-left text and values that are no texts."
CASES = ("Model.predict", "Classifier.predict", "predict --text", "predict --file", "bv.load", "bv.fit", "bv.run")


@dataclass
class Made:
    place: Path
    data: Path
    encoder: Path
    model: Any
    classifier: Any


def prepare(place: Path) -> Made:
    model = fit_model(place)
    made = Made(place, place / "data.csv", place / "encoder", model, bv.Classifier.load(place / "model"))
    made.model.predict(["a text"])
    made.classifier.predict(["a text"])
    return made


def attempt(made: Made, number: int, random: Random) -> Outcome:
    case = CASES[number % len(CASES)]
    texts: Any = [_text(random) for _ in range(random.choice([1, 1, 3]))]
    texts = random.choice([texts, texts, texts, nasty_value(random)])
    shown = _safe(texts)
    if case == "Model.predict":
        return judge(case, shown, lambda: made.model.predict(texts))
    if case == "Classifier.predict":
        return judge(case, shown, lambda: made.classifier.predict(texts))
    if case == "predict --text":
        words = ["--text", str(_text(random))[:100_000], *random.choice([[], ["--text-pair", "x"], ["--json"]])]
        return judge(case, f"{words!r:.300}", lambda: _command(made, words))
    if case == "predict --file":
        return _predict_file(made, random)
    value = nasty_value(random)
    if case == "bv.load":
        name = "x" if value in ("default", "", ".") else value
        folder = made.place / "model"
        wrong_head = lambda: bv.load(folder, head=value).predict(["a"])  # noqa: E731
        return judge(case, _safe(name), random.choice([lambda: bv.load(name), wrong_head]))
    if case == "bv.fit":
        option = random.choice(
            ["text", "label", "kind", "rows", "heads", "seconds", "metric", "seed", "tune", "to", "dev"]
        )
        options = {"encoder": str(made.encoder), "to": str(made.place / "never"), option: value}
        train = random.choice([str(made.data), str(made.data), nasty_value(random)])
        if (
            option in ("rows", "metric", "seed", "tune", "seconds", "to", "dev", "kind") or value is None
        ):  # may be right: stop it early
            options["encoder"] = str(made.place / "no_encoder")
        return judge(case, f"{_safe(train)} {option}={_safe(value)}", lambda: bv.fit(train, **options))
    given: dict[str, Any] = {"task": {"name": "files", "train": str(made.place / "nothing.csv")}}
    given[random.choice(["task", "encoder", "heads", "train", "config", "seed", "nothing"])] = value
    return judge(case, _safe(given), lambda: bv.run(**given))


def _text(random: Random) -> Any:
    texts: list[Any] = [
        "a" * 1_000_000, "word " * 200_000, "\0", "a\0b", "\ud800", "a \udfff b", "\u202eabc", "שלום עולם", "💥" * 1000,
        "e" + "\u0301" * 5000, " ", "", "\n", "\ufeff", "\u2028", "\x85", "[MASK] [SEP] [CLS]", ("a", "b"), ("a",),
        ("a", None), ["a", "b", "c"], None, 5, b"a", 1.5, {"text": "a"}, float("nan"), ("a", 5), [["a"]],
    ]  # fmt: skip
    return random.choice([random.choice(texts), nasty_text(random)])


def _predict_file(made: Made, random: Random) -> Outcome:
    path = made.place / "new.jsonl"
    rows = [{"text": _text(random)} for _ in range(random.choice([1, 3]))]
    kept = [row for row in rows if not isinstance(row["text"], bytes)] or [{"text": "\ud800"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    files = [["--out", str(made.place / name)] for name in ("o.jsonl", "o.json")]
    out = random.choice([[], ["--json"], *files])
    return judge(
        "predict --file", f"{out} {path.read_text()[:300]!r}", lambda: _command(made, ["--file", str(path), *out])
    )


def _command(made: Made, words: list[str]) -> None:
    done = CliRunner().invoke(app, ["predict", str(made.place / "model"), *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code not in (0, 1, 2) or PYTHON.search(done.stderr):
        raise AssertionError(f"exit code {done.exit_code}: {done.output[:300]}")


def _safe(value: Any) -> str:
    try:
        return f"{value!r:.300}"
    except (RecursionError, ValueError):
        return "a value without end"
