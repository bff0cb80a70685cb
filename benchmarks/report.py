"""Time and memory that a report takes: many models on a dataset as large as the dev set of SQuAD 2.0.

    python benchmarks/report.py [--questions 12000] [--models 20] [--folder FOLDER]

The run folder is synthetic: questions with and without an answer, random predictions of each model with twenty answers
per question, and per-example results and scores as a run writes them. Measured, each in its own process:

- ours: `bertvision report --no-encoder`, complete and without writing files.
- from predictions: the first step that would be needed without per-example results, and nothing else: read every
  predictions.jsonl and score it again by the official definition.
"""

import argparse
import json
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bertvision.data.examples import Example
from bertvision.disk import write_json
from bertvision.evaluation.spans.answers import Candidate, SpanAnswer
from bertvision.evaluation.spans.official import score_answers
from bertvision.kinds import SPAN, save_predictions, save_results
from bertvision.kinds.span import SpanPredictions, gold_answers
from bertvision.pipeline.folder import HELD_OUT, describe_task, mark_done
from bertvision.pipeline.job import Job, reopen

N_BEST = 20
WORDS = [f"word{number}" for number in range(400)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--questions", type=int, default=12_000)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    try:
        run = folder / "run"
        if not (run / "scores.json").is_file():
            make_run(run, options.questions, options.models)
        print_table(run, options.questions, options.models)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


# ---------------------------------------------------------------------- a synthetic run


def make_run(run: Path, questions: int, models: int) -> None:
    from bertvision.config import build_config

    random = np.random.default_rng(0)
    for split, count in (("train", questions // 10), ("dev", questions)):
        write_questions(run / "data" / f"{split}.json", count, random)
    heads = [{"head": "adapter", "size": size, "name": f"adapter_{size}"} for size in range(1, models - 1)]
    task = {"name": "files", "kind": "span", **{s: str(run / "data" / f"{s}.json") for s in ("train", "dev")}}
    config = {
        "task": task,
        "heads": heads,
        "data": {"hold_out": 0.5},
        "finetune": {"snapshots": [0.5]},
        "run": str(run),
    }
    job = Job(build_config(config))
    snapshots: dict[str, Any] = {}
    for epochs in (0.5, 1.0):
        facts = {
            "parameters": 10**8,
            "share": 1.0,
            "seconds": 100 * epochs,
            "tokens": int(10**7 * epochs),
            "memory": 10**9,
        }
        found = {"baseline": {"parameters": 0, "seconds": 0.0}, "encoder": facts}
        for member in job.members if epochs == 1 else []:
            own = {"parameters": 10**4, "share": 1e-4, "head": member.head, "group": member.group, "seed": 0}
            found[member.name] = {**facts, **own, "epochs": 1, "data_fraction": 1.0, "failed": False}
        for number, (name, model) in enumerate(found.items()):
            model["scores"] = score_model(job, epochs, name, 0.3 + 0.4 * number / models, random)
        snapshots[f"{epochs:g}"] = found
    write_json(
        run / "scores.json", {"task": "files", "kind": "span", "metrics": ["exact", "f1"], "snapshots": snapshots}
    )
    write_json(run / "config.json", job.config.to_dict())
    write_json(run / "task.json", describe_task(job.task))
    write_json(run / "environment.json", {"device": "none"})
    write_json(run / "lengths.json", {"dev": {"stamp": "", "lengths": [100, 200], "windows": [questions, 10]}})


def write_questions(path: Path, count: int, random: np.random.Generator) -> None:
    """Write passages of 60 to 250 words with five questions each; every other question has no answer."""
    articles = []
    for first in range(0, count, 5):
        words = random.choice(WORDS, int(random.integers(60, 250))).tolist()
        passage, questions = " ".join(words), []
        for number in range(first, min(first + 5, count)):
            first_word = int(random.integers(len(words) - 2))
            answer = {
                "text": " ".join(words[first_word : first_word + 2]),
                "answer_start": len(" ".join(words[:first_word]) + " " * (first_word > 0)),
            }
            answers = [answer] if number % 2 else []
            questions.append(
                {
                    "id": f"{path.stem}{number}",
                    "question": "which words?",
                    "answers": answers,
                    "is_impossible": not answers,
                }
            )
        articles.append({"title": f"t{first}", "paragraphs": [{"context": passage, "qas": questions}]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": "v2.0", "data": articles}), encoding="utf-8")


def score_model(job: Job, epochs: float, name: str, quality: float, random: np.random.Generator) -> dict[str, Any]:
    if name == "baseline":
        return {"dev": SPAN.baseline(job.task.metrics, job.examples("train"), job.examples("dev"))}
    found, threshold = {}, None
    for split in (HELD_OUT, "dev"):
        examples = job.examples(split)
        answers = [draw_answer(example, quality, random) for example in examples]
        predictions = SpanPredictions([example.id for example in examples], answers)
        results = SPAN.example_results(predictions, examples)
        threshold = SPAN.pick_threshold(results) if split == HELD_OUT else threshold
        found[split] = SPAN.score(job.task.metrics, results, threshold)
        folder = job.folder.predictions(epochs, split, name)
        save_predictions(folder, predictions, None, threshold or 0.0)
        save_results(folder, results)
        mark_done(folder, "made up", scores=found[split])
    return found


def draw_answer(example: Example, quality: float, random: np.random.Generator) -> SpanAnswer:
    passage = example.text_pair or ""
    ends = [position for position, letter in enumerate(passage) if letter == " "][1 : N_BEST + 1]
    spans = [(passage[:end], 0, end) for end in ends]
    if example.answers and random.random() < quality:
        text, start = example.answers[0]
        spans[0] = (text, start, start + len(text))
    scores = -np.cumsum(random.exponential(1.0, len(spans)))  # (candidate)
    null_score = float(random.normal(-1.0 if example.answers else 0.0))
    powers = np.exp(np.append(scores, null_score))  # (candidate + 1)
    shares = powers / powers.sum()
    n_best = [
        Candidate(*span, float(score), float(share)) for span, score, share in zip(spans, scores, shares, strict=False)
    ]
    return SpanAnswer(example.id, *n_best[0][:4], null_score, float(shares[-1]), n_best)


# ---------------------------------------------------------------------- measuring


def print_table(run: Path, questions: int, models: int) -> None:
    table = Table(
        "work", "seconds", "peak MB", title=f"{models} models, {questions:,} questions, {N_BEST} answers each"
    )
    for name, work in (
        ("report with --no-encoder", build_whole),
        ("… without files and pictures", build_only),
        ("read predictions and score them again", read_predictions),
    ):
        seconds, memory = in_process(work, run)
        table.add_row(name, f"{seconds:.1f}", f"{memory:,.0f}")
    Console().print(table)
    size = (run / "report.html").stat().st_size
    print(f"report.html: {size / 1e6:.2f} MB. Each row runs in its own process; imports are not counted.")


def in_process(work: Callable[[Path], float], run: Path) -> tuple[float, float]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(timed, work, run).result()


def timed(work: Callable[[Path], float], run: Path) -> tuple[float, float]:
    import bertvision.report.build  # noqa: F401

    started = time.perf_counter()
    work(run)
    return time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def build_whole(run: Path) -> None:
    from bertvision.report.build import make_report

    make_report([run], with_encoder=False)


def build_only(run: Path) -> None:
    from bertvision.pipeline.finished import FinishedRun
    from bertvision.progress import Reporter
    from bertvision.report.build import build_report

    build_report(FinishedRun(run), Reporter(), with_encoder=False)


def read_predictions(run: Path) -> None:
    gold = gold_answers(reopen(run).examples("dev"))
    for path in sorted(run.glob("snapshots/*/predictions/dev/*/predictions.jsonl")):
        with path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        score_answers(gold, {row["id"]: row["answer"] for row in rows})


if __name__ == "__main__":
    main()
