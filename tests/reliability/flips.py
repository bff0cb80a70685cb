"""One flipped bit at a random place of every kind of file, with every reader of that file.

Good: refused with the file's name, the same result, made again identically (`run`), or left out with a message. Bad:
another result without a word, or a traceback.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tiny_stores import begin_tiny_store, tiny_encoder

import bertvision as bv
from bertvision.disk import seals
from bertvision.encoder.shared import forget
from bertvision.encoder.states import Part
from bertvision.errors import UserError
from bertvision.kits.kit import Kit
from bertvision.kits.make import make_kit
from bertvision.models.predict import FittedPredictor
from bertvision.pipeline.begin import read_begin
from bertvision.pipeline.job import Job
from bertvision.pipeline.predict import Predictor
from bertvision.pipeline.run import run_job, score_job
from bertvision.progress import Reporter
from bertvision.report.build import build_report
from bertvision.report.writing import report_values
from bertvision.sources import MemoryStates
from bertvision.sources.store import Store, StoredSource
from bertvision.training.checkpoint import Checkpoints
from tests.reliability.made import Made, config_of, make_all, open_study
from tests.reliability.trials import Outcome

NAME, ABOUT = "flips", "one flipped bit in every kind of file, with every reader"
TRIALS, SLICE = 2_500, 80
PAIRS = [("a king", "a man, old"), ("the woman", "a young king")]
TEXTS = ["the king and the film", "an old river"]
GOOD = ("refused", "same", "made again", "said")


class Listener(Reporter):
    """Collects what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@dataclass(frozen=True)
class Case:
    """A kind of file, and what reads it."""

    name: str
    folder: str
    files: tuple[str, ...]
    """Patterns of the files in the folder."""
    read: Callable[[Made, Listener], Any]
    weight: int = 1
    writes: bool = False
    """Whether the reader changes the folder."""


# ---------------------------------------------------------------------- readers


def predict(head: str | None) -> Callable[[Made, Listener], Any]:
    return lambda made, said: Predictor(made.folder("run"), head, reporter=said).predict_texts(PAIRS)


def report(made: Made, said: Listener) -> Any:
    from bertvision.pipeline.finished import FinishedRun

    run = FinishedRun(made.folder("run"))
    found = report_values(build_report(run, said))
    if run.log.lost:
        said.say("metrics.jsonl: lines are damaged")  # as make_report does
    return repr(found)


def evaluate(made: Made, said: Listener) -> Any:
    return score_job(Job(made.config, said))


def run_again(made: Made, said: Listener) -> Any:
    scores = run_job(Job(made.config, said))
    weights = {
        path.relative_to(made.place).as_posix(): {name: one.numpy().tobytes() for name, one in load_file(path).items()}
        for path in sorted(made.folder("run").rglob("*.safetensors"))
    }
    return _without_costs(scores), weights


def ensemble(made: Made, said: Listener) -> Any:
    return _without_costs(bv.Run(made.folder("run")).ensemble("encoder", "learned_pooling", method="mean", name="two"))


def kit(made: Made, said: Listener) -> Any:
    return Kit(made.folder("kit"), reporter=said).predict(PAIRS)


def make(made: Made, said: Listener) -> Any:
    to = made.folder("made")
    try:
        make_kit([made.folder("frozen")], to)
        return {path.relative_to(to): path.read_bytes() for path in sorted(to.rglob("*")) if path.is_file()}
    finally:
        shutil.rmtree(to, ignore_errors=True)


def shipped(made: Made, said: Listener) -> Any:
    return Kit(made.folder("shipped"), ["sst2"], reporter=said).predict(["a fine film"])


def begin(made: Made, said: Listener) -> Any:
    config = config_of(made.place, "begun", heads=[{"head": "adapter", "size": 4, "begin": str(_begun(made))}])
    from bertvision.encoder.states import StateShape
    from bertvision.heads import build_head
    from bertvision.pipeline.begin import begin_head

    job = Job(config, said)
    member = next(one for one in job.members if one.begin is not None)
    read_begin(_begun(made))
    head = build_head(member, StateShape(4, 32, True), job.target)
    begin_head(head, member, job.task)
    return member.to_dict(), {name: value.numpy().tobytes() for name, value in head.state_dict().items()}


def _begun(made: Made) -> Path:
    return made.folder("run") / "snapshots" / "epoch_1" / "heads" / "adapter_4"


def model(folder: str, head: str) -> Callable[[Made, Listener], Any]:
    def read(made: Made, said: Listener) -> Any:
        forget()
        return FittedPredictor(made.folder(folder), head, said).predict_texts(TEXTS)

    return read


def estimator(made: Made, said: Listener) -> Any:
    forget()
    found = bv.Classifier.load(made.folder("estimator"))
    return found.predict_proba(TEXTS).tolist(), found.classes_.tolist(), found.suspects_


def tokens(made: Made, said: Listener) -> Any:
    return _read_store(made, ("tokens",))


def _read_store(made: Made, keep: tuple[Part, ...]) -> Any:
    tiny = _tiny(keep)
    store = Store.open(made.folder(f"store_{keep[0]}"), tiny.identity)
    plan = [np.arange(first, first + 6) for first in (6, 0, 12)]
    batches = StoredSource(store, tiny.features, plan, keep).batches()
    return [[batch.states.read(part).numpy().tobytes() for part in keep] for batch in batches]


def pooled(made: Made, said: Listener) -> Any:
    tiny = _tiny(("cls", "mean"))
    store = Store.open(made.folder("store_cls"), tiny.identity)
    found = MemoryStates.load(store, ("cls", "mean"), tiny.features, torch.device("cpu"), torch.float32)
    return {part: values.numpy().tobytes() for part, values in found.parts.items()}


def facts(made: Made, said: Listener) -> Any:
    store = Store.open(made.folder("store_tokens"))
    return {name: values.tobytes() for name, values in store.facts().items()}, store.ids()


def search(made: Made, said: Listener) -> Any:
    study = open_study(made.folder("search"))
    return study.tried(), study.facts, study.take_population(3)


def checkpoint(made: Made, said: Listener) -> Any:
    found = Checkpoints(made.folder("checkpoints"), "stamp", 60.0).load()
    if found is None:
        said.say("step_000000007: the work is done again")
        return None
    return found.step, {name: one.numpy().tobytes() for name, one in found.tensors.items()}, found.facts


@cache
def _tiny(keep: tuple[Part, ...]) -> Any:
    """What a store is read with. The folder is not written."""
    return begin_tiny_store(Path("/nonexistent") / keep[0], "float16", keep)


def _without_costs(value: Any) -> Any:
    """Scores without seconds and memory, which differ from run to run."""
    if isinstance(value, dict):
        return {key: _without_costs(item) for key, item in value.items() if key not in ("seconds", "memory", "tokens")}
    return [_without_costs(item) for item in value] if isinstance(value, list) else value


RUN_FILES = ("scores.json", "task.json", "config.json")
ONE = "snapshots/epoch_1"
CASES = [
    Case("head → predict", "run", (f"{ONE}/heads/adapter_4/*",), predict("adapter_4"), 8),
    Case("encoder's weights → predict", "run", (f"{ONE}/encoder/model.safetensors",), predict("adapter_4"), 5),
    Case("encoder's other files → predict", "run", (f"{ONE}/encoder/*.json", f"{ONE}/encoder/*.txt"), predict(None), 5),
    Case("output layer → predict", "run", (f"{ONE}/encoder/output_layer.*",), predict("encoder"), 5),
    Case("JSON of a run → predict", "run", RUN_FILES, predict(None), 4),
    Case("predictions → report", "run", (f"{ONE}/predictions/dev/*/*",), report, 3),
    Case("metrics.jsonl → report", "run", ("metrics.jsonl",), report, 2),
    Case("JSON of a run → report", "run", ("*.json",), report, 3),
    Case("caches, heads → report", "run", ("analyses/*.json", f"{ONE}/heads/*/*"), report, 2),
    Case("predictions → evaluate", "run", ("snapshots/*/predictions/*/*/*",), evaluate, 3, True),
    Case("JSON of a run → evaluate", "run", ("*.json",), evaluate, 2, True),
    Case("snapshot in the middle → run", "run", ("snapshots/epoch_0.5/encoder/*",), run_again, 1, True),
    Case("heads, last snapshot → run", "run", ("snapshots/*/heads/*/*", f"{ONE}/encoder/*"), run_again, 1, True),
    Case("predictions, JSON → run", "run", ("snapshots/*/predictions/*/*/*", "*.json"), run_again, 1, True),
    Case("outputs → ensemble", "run", (f"{ONE}/predictions/*/*/outputs.safetensors",), ensemble, 2, True),
    Case("head → begin", "run", (f"{ONE}/heads/adapter_4/*", "task.json"), begin, 5),
    Case("kit → predict", "kit", ("*.json", "rte/*"), kit, 8),
    Case("shipped kit → predict", "shipped", ("kit.json", "sst2/*"), shipped, 2),
    Case("run → kit", "frozen", ("*.json", "snapshots/*/heads/*/*", "snapshots/*/encoder/*"), make, 3),
    Case("head of a fitted model → predict", "model", ("snapshots/*/heads/*/*", "*.json"), model("model", "linear"), 6),
    Case("encoder of a fitted model → predict", "model", ("snapshots/*/encoder/*",), model("model", "last_lr"), 3),
    Case("TF-IDF → predict", "words", ("snapshots/epoch_0/tfidf/*", "*.json"), model("words", "tfidf_lr"), 6),
    Case("estimator → load, predict", "estimator", ("*.json", "suspects.csv"), estimator, 4),
    Case("untouched encoder → predict", "encoder", ("*",), kit, 5),
    Case("store of tokens → train", "store_tokens", ("*",), tokens, 10),
    Case("store of [CLS] and mean → train", "store_cls", ("*",), pooled, 6),
    Case("store → its facts", "store_tokens", ("*",), facts, 3),
    Case("study → search", "search", ("study.jsonl",), search, 4, True),
    Case("checkpoint → resume", "checkpoints", ("step_*/*",), checkpoint, 6),
]
SCHEDULE = [case for case in CASES for _ in range(case.weight)]


def prepare(place: Path) -> tuple[Made, dict[str, Any]]:
    torch.set_num_threads(1)
    tiny_encoder()
    made = make_all(place)
    bv.Classifier(encoder=str(place / "encoder"), heads=["linear"], seed=1).fit(*_texts()).save(place / "estimator")
    from bertvision.pipeline.folder import SHIPPED

    shutil.copytree(SHIPPED / "default", place / "shipped")
    bv.Run(place / "run").report()  # writes the caches
    run_again(made, Listener())
    for folder in {case.folder for case in CASES}:
        shutil.copytree(place / folder, place / "whole" / folder)
    expected = {}
    for case in CASES:
        expected[case.name] = case.read(made, Listener())
        if case.writes:
            _restore(made, case.folder)
    return made, expected


def _texts() -> tuple[list[str], list[str]]:
    texts = [f"the {'king' if number % 2 else 'river'} {number}" for number in range(40)]
    return texts, ["odd" if (number % 2 == 1) != (number == 6) else "even" for number in range(40)]


def _restore(made: Made, folder: str) -> None:
    shutil.rmtree(made.folder(folder))
    shutil.copytree(made.folder("whole") / folder, made.folder(folder))


def attempt(made: tuple[Made, dict[str, Any]], number: int, random: random.Random) -> Outcome:
    all_made, expected = made
    case = SCHEDULE[number % len(SCHEDULE)]
    folder = all_made.folder(case.folder)
    files = sorted({path for pattern in case.files for path in folder.glob(pattern) if path.is_file()})
    path = random.choice([file for file in files if file.stat().st_size and file.name != "README.md"])
    whole, bit = path.read_bytes(), random.randrange(8 * path.stat().st_size)
    data = bytearray(whole)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    seals._known.clear()  # a trial may be shorter than a tick of the file system's clock
    said = Listener()
    try:
        result, detail = _judge(case, all_made, said, path, expected[case.name])
    finally:
        if case.writes:
            _restore(all_made, case.folder)
        else:
            path.write_bytes(whole)
        seals._known.clear()
    detail = detail and f"{path.relative_to(all_made.place)}, bit {bit}: {detail}"
    return Outcome(case.name, result, result in GOOD, detail)


def _judge(case: Case, made: Made, said: Listener, path: Path, expected: Any) -> tuple[str, str]:
    try:
        found = case.read(made, said)
    except UserError as error:
        named = path.name in str(error) or str(path.parent) in str(error)
        return ("refused", "") if named else ("refused, another name", str(error))
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    about = [line for line in said.said if path.name in line or path.parent.name in line]
    if found == expected:
        return ("made again" if about and case.writes else "same"), ""
    return ("said", "") if about else ("silent", "another result without a word")
