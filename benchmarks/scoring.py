"""Seconds from raw outputs to official scores and files for several models, by part, compared with a plain program.

    python benchmarks/scoring.py [--models 20] [--device cpu] [--data FOLDER] [--questions 2000] [--encoder embedded]

The peer works without arrays, question by question: it combines the 20 best starts and the 20 best ends of each window,
sorts them, compares their words with the gold answers, and writes one JSON line each. It is run for one model, on every
--peer-share'th question, and its time is multiplied accordingly (≈). Without --data, the questions are the demo's.
Outputs are synthetic: noise, most of it common to all models, and a peak at the gold answer or at [CLS].
"""

import argparse
import json
import re
import string
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bertvision.data.examples import Example
from bertvision.data.windows import Features, build_features
from bertvision.encoder.loading import load_tokenizer
from bertvision.evaluation.spans.layout import layout_of
from bertvision.evaluation.spans.pairs import groups_on
from bertvision.kinds import Decoding, save_predictions, save_results
from bertvision.tasks import Task, TaskConfig, build_task

N_BEST, LONGEST = 20, 30
ARTICLES = re.compile(r"\b(a|an|the)\b")


class Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.last = time.perf_counter()

    def record(self, part: str) -> None:
        """Add the time since the last call to this part."""
        now = time.perf_counter()
        self.parts[part] = self.parts.get(part, 0.0) + now - self.last
        self.last = now


def draw_outputs(features: Features, count: int) -> list[np.ndarray]:
    """Draw outputs (token, 2) of models that are often right, and as similar as heads on one encoder."""
    common = np.random.default_rng(0).normal(0, 1.5, (len(features.input_ids), 2)).astype(np.float32)
    found = []
    for number in range(count):
        random = np.random.default_rng(number + 1)
        outputs = common + random.normal(0, 0.7, common.shape).astype(np.float32)  # (token, 2)
        right = random.random(len(features)) < 0.75  # (window,)
        for side, gold in enumerate((features.start, features.end)):
            for away in (-2, -1, 0, 1, 2):
                position = np.clip(np.where(right, gold, 0) + away, 0, features.lengths - 1)  # (window,)
                outputs[features.starts + position, side] += random.normal(8 - 2 * abs(away), 1, len(features))
        found.append(outputs)
    return found


# ---------------------------------------------------------------------------------------------------- ours


def score_models(
    task: Task,
    outputs: list[np.ndarray],
    features: Features,
    examples: list[Example],
    device: str,
    folder: Path,
) -> dict[str, float]:
    """Seconds by part, from outputs to files, for these models."""
    vars(features).pop("span_layout", None)  # start without a cached layout
    clock = Clock()
    groups_on(layout_of(features, examples), torch.device(device))
    clock.record("layout of the split, once")
    for number, output in enumerate(outputs):
        predictions = task.kind.decode(task, output, features, examples, Decoding(N_BEST, LONGEST, device))
        clock.record("best spans")
        results = task.kind.example_results(predictions, examples)
        clock.record("exact match and F1")
        threshold = task.kind.pick_threshold(results)
        task.kind.score(task.metrics, results, threshold)
        clock.record("threshold and scores")
        save_predictions(folder / str(number), predictions, output, threshold)
        save_results(folder / str(number), results)
        clock.record("files")
    return clock.parts


def score_after_epoch(
    task: Task, outputs: list[np.ndarray], features: Features, examples: list[Example], device: str
) -> float:
    """Seconds of the scoring after each epoch: only the best answer, and no files."""
    started = time.perf_counter()
    for output in outputs:
        predictions = task.kind.decode(task, output, features, examples, Decoding(1, LONGEST, device))
        results = task.kind.example_results(predictions, examples)
        task.kind.score(task.metrics, results, task.kind.pick_threshold(results))
    return time.perf_counter() - started


# ---------------------------------------------------------------------------------------------------- the plain program


def score_plainly(
    outputs: np.ndarray, features: Features, examples: list[Example], share: int, folder: Path
) -> dict[str, float]:
    """Seconds by part for every `share`th question."""
    chosen = range(0, len(examples), share)
    windows: dict[int, list[int]] = {index: [] for index in chosen}
    for window, index in enumerate(features.example.tolist()):
        if index in windows:
            windows[index].append(window)
    clock = Clock()
    rows = [decode_plainly(examples[index], windows[index], features, outputs) for index in chosen]
    clock.record("best spans")
    golds = [[answer.text for answer in examples[index].answers or ()] or [""] for index in chosen]
    measured = [
        [measure_plainly(gold, text) for text in (row["answer"], "")] for gold, row in zip(golds, rows, strict=True)
    ]
    clock.record("exact match and F1")
    leads = [row["null_score"] - row["score"] for row in rows]
    best, total = 0.0, sum(silent[1] for _, silent in measured)
    highest = total
    for index in sorted(range(len(rows)), key=leads.__getitem__):
        total += measured[index][0][1] - measured[index][1][1]
        if total > highest:
            highest, best = total, leads[index]
    for which in (0, 1):
        sum(pair[lead > best][which] for pair, lead in zip(measured, leads, strict=True))
    clock.record("threshold and scores")
    with (folder / "plain.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    clock.record("files")
    return {part: seconds * share for part, seconds in clock.parts.items()}


def decode_plainly(example: Example, windows: list[int], features: Features, outputs: np.ndarray) -> dict:
    passage, spans, null_score = example.text_pair or "", {}, np.inf
    for window in windows:
        tokens = features.tokens_of(window)
        scores, offsets = outputs[tokens].astype(np.float64), features.offsets[tokens].tolist()  # (token, 2)
        scores -= np.log(np.exp(scores).sum(axis=0))
        null_score = min(null_score, float(scores[0].sum()))
        starts, ends = (np.argsort(-scores[:, side])[:N_BEST].tolist() for side in (0, 1))
        for start in starts:
            for end in ends:
                if start <= end < start + LONGEST and offsets[start][0] >= 0 and offsets[end][0] >= 0:
                    span, score = (offsets[start][0], offsets[end][1]), float(scores[start, 0] + scores[end, 1])
                    spans[span] = max(score, spans.get(span, -np.inf))
    best = sorted(spans.items(), key=lambda item: -item[1])[:N_BEST]
    powers = np.exp(np.array([null_score, *(score for _, score in best)]))
    shares = (powers / powers.sum()).tolist()
    n_best = [
        {"text": passage[low:high], "start": low, "end": high, "score": round(score, 5), "probability": round(share, 6)}
        for ((low, high), score), share in zip(best, shares[1:], strict=True)
    ]
    first = n_best[0] if n_best else {"text": "", "score": -1e6}
    own = {"id": example.id, "answer": first["text"], "score": first["score"], "null_score": null_score}
    return {**own, "n_best": n_best}


def measure_plainly(gold: list[str], predicted: str) -> tuple[float, float]:
    words = [normalise_plainly(text) for text in (predicted, *gold)]
    f1s = []
    for known in words[1:]:
        shared = sum((Counter(words[0]) & Counter(known)).values())
        f1s.append(float(words[0] == known) if not words[0] or not known else 2 * shared / (len(words[0]) + len(known)))
    return float(words[0] in words[1:]), max(f1s)


def normalise_plainly(text: str) -> list[str]:
    letters = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return ARTICLES.sub(" ", letters).split()


# ---------------------------------------------------------------------------------------------------- the table


def show(plain: dict[str, float], one: dict[str, float], many: dict[str, float], models: int, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("part")
    for column in ("plain, 1 model s", "1 model s", f"{models} models s", "ms/model", "plain / ours"):
        table.add_column(column, justify="right")
    whole = [{**parts, "all": sum(parts.values())} for parts in (plain, one, many)]
    for part in whole[1]:
        seconds = [parts.get(part) for parts in whole]
        shown = [f"{value:.2f}" if value is not None else "" for value in seconds[1:]]
        ratio = f"{models * seconds[0] / seconds[2]:.0f} ×" if seconds[0] is not None and seconds[2] else ""
        before = f"≈{seconds[0]:.2f}" if seconds[0] is not None else ""
        table.add_row(part, before, *shown, f"{1000 * (seconds[2] or 0.0) / models:.1f}", ratio)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", help="folder with the dev file of SQuAD 2.0 (default: the demo's questions)")
    parser.add_argument("--questions", type=int, default=2000, help="number of demo questions")
    parser.add_argument("--encoder", default="embedded", help="encoder whose tokenizer is used")
    parser.add_argument("--peer-share", type=int, default=10)
    options = parser.parse_args()
    demo = TaskConfig("demo", dev_questions=options.questions)
    found = str(next(Path(options.data).glob("dev*.json*"))) if options.data else None
    task = build_task(TaskConfig("squad2", dev=found) if found else demo)
    examples = task.read("dev")
    features = build_features(examples, load_tokenizer(options.encoder), task.kind, task.windowed, task.max_length)
    outputs = draw_outputs(features, options.models)
    with tempfile.TemporaryDirectory() as folder:
        plain = score_plainly(outputs[0], features, examples, options.peer_share, Path(folder))
        score_models(task, outputs[:1], features, examples, options.device, Path(folder))  # warm-up
        one = score_models(task, outputs[:1], features, examples, options.device, Path(folder))
        many = score_models(task, outputs, features, examples, options.device, Path(folder))
    after_epoch = score_after_epoch(task, outputs, features, examples, options.device)
    tokens = f"{len(examples):,} questions, {len(features):,} windows, {int(features.lengths.sum()):,} tokens"
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console = Console(width=150)
    console.print(show(plain, one, many, options.models, f"{tokens}; {name}"))
    console.print(f"Scoring {options.models} models after an epoch (best answer only, no files): {after_epoch:.2f} s.")


if __name__ == "__main__":
    main()
