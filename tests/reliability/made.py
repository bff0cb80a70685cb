"""What the attacks on files are made on: a tiny encoder, two runs, a kit, a fitted model, stores and a checkpoint."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer
from tiny_stores import write_tiny_store

import bertvision as bv
from bertvision.config import RunConfig, build_config
from bertvision.kits.make import make_kit
from bertvision.search.space import Choices, Range, Space
from bertvision.search.study import Study
from bertvision.training.checkpoint import Checkpoints

FIXTURES = Path(__file__).parents[1] / "fixtures"
WORDS = ("king", "man", "woman", "young", "old", "boy", "girl", "film", "house", "river")


@dataclass(frozen=True)
class Made:
    """Folders of everything, and the config of the run."""

    place: Path
    config: RunConfig

    def folder(self, name: str) -> Path:
        return self.place / name


def make_encoder(folder: Path) -> None:
    tiny_model("bert", num_attention_heads=2).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    say_how_to_read(folder, "cls")


def config_of(place: Path, run: str, **changes: Any) -> RunConfig:
    """A run of a second or two in which every stage does something."""
    tables: dict[str, Any] = {
        "task": {"name": "rte", "data": str(FIXTURES / "glue_tiny")},
        "encoder": {"name": str(place / "encoder"), "device": "cpu"},
        "data": {"max_length": 48, "hold_out": 0.25},
        "finetune": {"epochs": 1, "lr": 1e-3, "batch_rows": 2, "snapshots": [0.5]},
        "train": {"epochs": 2, "batch_rows": 4, "snapshots": [0.5, 1]},
        "heads": [{"head": "learned_pooling"}, {"head": "adapter", "size": 4}],
        "ensembles": [["encoder", "adapter_4"]],
        "run": str(place / run),
    }
    return build_config({**tables, **changes})


def write_table(path: Path) -> None:
    """Texts whose label follows from a word, except for a few rows."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number in range(80):
            word, other = WORDS[number % 10], WORDS[(number * 7 + number // 10) % 10]
            wrong = number in (11, 42)
            rows.writerow([f"the {word} and the {other} {number}", "even" if (number % 2 == 0) != wrong else "odd"])


def make_all(place: Path) -> Made:
    make_encoder(place / "encoder")
    config = config_of(place, "run")
    bv.run(config)
    bv.Run(place / "run").ensemble("learned_pooling", "adapter_4", method="mean")
    untouched = {"epochs": 0, "snapshots": []}
    bv.run(config_of(place, "frozen", finetune=untouched, train={"epochs": 2, "batch_rows": 4}, ensembles=[]))
    make_kit([place / "frozen"], place / "kit")
    write_table(place / "table.csv")
    for name, heads in (("model", ["linear"]), ("words", ["tfidf_lr"])):
        bv.fit(place / "table.csv", to=place / name, encoder=str(place / "encoder"), heads=heads, seed=1)
    for parts in (("tokens",), ("cls", "mean")):
        write_tiny_store(place / f"store_{parts[0]}", "float16", parts)
    numbers = torch.Generator().manual_seed(0)
    state = {"weight": torch.randn(40, 20, generator=numbers), "adam/step": torch.tensor(7.0)}
    Checkpoints(place / "checkpoints", "stamp", 60.0).save(7, state, {"seconds": 1.5, "order": [3, 1, 2]})
    _search(place / "search")
    return Made(place, config)


def _search(folder: Path) -> None:
    """Two populations of a search, the second unfinished."""
    study = open_study(folder)
    study.note("made_of", {"seed": 0})
    for score in (70.0, None):
        for member in study.take_population(3):
            study.report({member.number: (1, 50.0 + member.number)})
            if score is not None:
                study.finish([(member.number, "complete", score + member.number)])


def open_study(folder: Path) -> Study:
    space = Space(training={"lr": Range(1e-4, 1e-2, True, False)}, heads={"adapter": {"size": Choices((4, 8))}})
    return Study(folder / "study.jsonl", "one", space, "tpe", 0)


def fit_model(place: Path) -> Any:
    """A model fitted to sixty texts, with its encoder in `place / "encoder"` and its data in `place / "data.csv"`."""
    make_encoder(place / "encoder")
    lines = [f"what is this text {number},{'ab'[number % 2]}\n" for number in range(60)]
    (place / "data.csv").write_text("text,label\n" + "".join(lines))
    encoder = str(place / "encoder")
    return bv.fit(place / "data.csv", encoder=encoder, heads=["linear"], seconds=1, to=place / "model")
