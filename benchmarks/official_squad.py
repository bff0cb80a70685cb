"""What the official scores on SQuAD 2.0 depend on: the share of unanswerable questions in training, generated ones,
epochs, batch size, dropout in attention, and how the no-answer threshold is chosen.

    BERTVISION_REAL_DATA=… python benchmarks/official_squad.py --encoder FOLDER --results official_squad.jsonl
    python benchmarks/official_squad.py --results official_squad.jsonl --table

Options: --variants third half …, --seeds 0 1 2, --questions N (of train and of dev, to try it), --set
section.key=value ….

The encoder is fully fine-tuned with its own output layer, and nothing else is trained. `third` is the reference; each
other variant changes one thing:

| variant | what it changes |
|---|---|
| partial | all questions at hand: 17 % are unanswerable instead of 33 % |
| half | 50 % are unanswerable: answerable ones are dropped |
| third_swapped | 50 %: generated unanswerable questions are added |
| partial_swapped, partial_half | all questions at hand, and generated ones up to 33 and 50 % |
| epochs_1, epochs_3 | instead of 2 |
| tokens_4096, tokens_16384 | tokens per step, instead of 8,192 |
| attention_dropout | the padded route, on which transformers applies dropout to attention weights |

A generated question is an answerable one with another passage of its article, which has none of its answers. It chooses
no threshold.

Official EM and F1 on dev at threshold 0, at the threshold chosen on held-out training articles (*), and at the one
chosen there for one half unanswerable (**, `evaluate.unanswerable=0.5`), the share that SQuAD 2.0 states for dev. AUC
and answerable-only F1 need no threshold. Seconds are those of fine-tuning. Measurements are appended to the results
file, one JSON object per line. Finished ones are skipped.
"""

import argparse
import copy
import dataclasses
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from user_tasks import append_all, print_table, read_results, show

Document = dict[str, Any]
BASE = {
    "finetune.epochs": 2, "finetune.lr": 2e-4, "finetune.batch_tokens": 8192, "finetune.snapshots": [],
}  # fmt: skip
"""The rate was chosen on held-out questions of this training set (docs/results.md)."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "third": ("third", {}),
    "partial": ("partial", {}),
    "half": ("half", {}),
    "partial_swapped": ("partial_swapped", {}),
    "third_swapped": ("third_swapped", {}),
    "partial_half": ("partial_half", {}),
    "epochs_1": ("third", {"finetune.epochs": 1}),
    "epochs_3": ("third", {"finetune.epochs": 3}),
    "tokens_4096": ("third", {"finetune.batch_tokens": 4096}),
    "tokens_16384": ("third", {"finetune.batch_tokens": 16384}),
    "attention_dropout": ("third", {"encoder.attention": "padded"}),
}
"""Name → the training questions, and what differs from BASE."""
SHARES = {"half": 0.5, "partial_swapped": 1 / 3, "third_swapped": 0.5, "partial_half": 0.5}
HALF = 0.5
"""The share of unanswerable questions in dev (Rajpurkar et al. 2018)."""
SWAPPED = "-swapped"
"""The end of the ids of generated questions."""
COLUMNS = (
    "exact", "f1", "exact*", "f1*", "exact**", "f1**", "no_answer_auc", "forced_f1", "held_f1", "held_auc", "questions",
    "seconds",
)  # fmt: skip


class Measurement(NamedTuple):
    encoder: str
    variant: str
    seed: int
    questions: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print the table of the results file")
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--questions", type=int)
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value")
    arguments = parser.parse_args()
    if not arguments.table:
        wanted = [
            Measurement(Path(arguments.encoder).name, variant, seed, arguments.questions)
            for seed in arguments.seeds
            for variant in arguments.variants
        ]
        missing = [one for one in wanted if one not in read_results(arguments.results, Measurement)]
        append_all(missing, arguments.results, lambda one: measure(one, arguments.encoder, arguments.set), describe)
    print_tables(read_results(arguments.results, Measurement))


def measure(one: Measurement, encoder: str, settings: list[str]) -> dict[str, Any]:
    """Fine-tune once, and score the encoder with its output layer on dev."""
    import bertvision as bv
    from bertvision.config import build_config
    from bertvision.pipeline.finished import FinishedRun
    from bertvision.pipeline.folder import HELD_OUT

    data = Path(os.environ["BERTVISION_REAL_DATA"]) / "squad"
    kind, changed = VARIANTS[one.variant]
    with tempfile.TemporaryDirectory() as folder:
        train = Path(folder) / "train.json"
        document = compose(kind, data)
        train.write_text(json.dumps(document), encoding="utf-8")
        words = [f"{key}={json.dumps(value)}" for key, value in {**BASE, **changed}.items()]
        limits = [] if one.questions is None else [f"data.limit_{part}={one.questions}" for part in ("train", "dev")]
        task = {"name": "squad2", "train": str(train), "dev": str(data / "dev-v2.0.json.gz")}
        given = {"task": task, "encoder": {"name": encoder}, "heads": ["last_linear"], "seed": one.seed}
        run = FinishedRun(bv.run(build_config({**given, "run": f"{folder}/run"}, [*words, *limits, *settings])).folder)
        model = run.encoder(run.last).first
        held, dev = model.results(HELD_OUT), model.results("dev")
        lines = (model.predictions(HELD_OUT) / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
        real = np.array([not json.loads(line)["id"].endswith(SWAPPED) for line in lines])  # (held-out question)
        found = {**score(held, real, dev), "seconds": model.seconds}
    return {**found, "questions": sum(1 for _ in questions_of(document))}


def score(held: Any, real: Any, dev: Any) -> dict[str, Any]:
    """The scores on dev, at three thresholds chosen on the held-out questions that were not generated. `held_f1` and
    `held_auc` are those of these questions, weighted to one half unanswerable: variants are compared by them."""
    from bertvision.evaluation.spans.decode import forced_scores
    from bertvision.kinds import SPAN

    held = dataclasses.replace(held, **{one.name: getattr(held, one.name)[real] for one in dataclasses.fields(held)})
    thresholds = {"": 0.0, "*": SPAN.pick_threshold(held), "**": SPAN.pick_threshold(held, HALF)}
    found = forced_scores(dev.lead, dev.exact, dev.f1, dev.has_answer)
    f1 = held.f1_at(thresholds["**"])  # (held-out question)
    found["held_f1"] = 50 * float(f1[held.has_answer].mean() + f1[~held.has_answer].mean())
    found["held_auc"] = forced_scores(held.lead, held.exact, held.f1, held.has_answer)["no_answer_auc"]
    for mark, threshold in thresholds.items():
        found[f"exact{mark}"] = 100 * float(dev.exact_at(threshold).mean())
        found[f"f1{mark}"] = 100 * float(dev.f1_at(threshold).mean())
    return {**found, "thresholds": thresholds, "held_out": len(held)}


# ---------------------------------------------------------------------- training questions


def compose(kind: str, data: Path) -> Document:
    """The training questions of a variant, in SQuAD's format."""
    from bertvision.tasks.text_files import read_json

    file = "third" if kind.startswith("third") else "partial"
    document: Document = read_json(data / f"train-v2.0.{file}.json.gz")
    if "_" in kind:
        return with_swapped(document, SHARES[kind])
    return thin_answerable(document, SHARES[kind]) if kind in SHARES else document


def questions_of(document: Document) -> Iterator[tuple[list[Document], Document, Document]]:
    """The paragraphs of the article, the paragraph and the question."""
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield article["paragraphs"], paragraph, question


def thin_answerable(document: Document, share: float) -> Document:
    """Drop answerable questions at random until this share of the rest is unanswerable."""
    answerable = [question["id"] for _, _, question in questions_of(document) if question["answers"]]
    silent = sum(1 for _ in questions_of(document)) - len(answerable)
    kept = set(random.Random(0).sample(answerable, min(len(answerable), round(silent * (1 - share) / share))))
    thinned = copy.deepcopy(document)
    for article in thinned["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [one for one in paragraph["qas"] if not one["answers"] or one["id"] in kept]
    return thinned


def with_swapped(document: Document, share: float) -> Document:
    """Add answerable questions to other passages of their article until this share is unanswerable. A passage with one
    of the question's answers in it is not taken."""
    draws, mixed = random.Random(0), copy.deepcopy(document)
    answerable = [found for found in questions_of(mixed) if found[2]["answers"]]
    silent = sum(1 for _ in questions_of(mixed)) - len(answerable)
    missing = round((share * (len(answerable) + silent) - silent) / (1 - share))
    draws.shuffle(answerable)
    for paragraphs, own, question in answerable:
        if missing <= 0:
            break
        answers = [answer["text"].lower() for answer in question["answers"]]
        others = [
            one for one in paragraphs
            if one is not own and not any(answer in one["context"].lower() for answer in answers)
        ]  # fmt: skip
        if others:
            swapped = {**question, "id": f"{question['id']}{SWAPPED}", "answers": [], "is_impossible": True}
            draws.choice(others)["qas"].append(swapped)
            missing -= 1
    return mixed


# ---------------------------------------------------------------------- tables


def describe(found: dict[str, Any]) -> str:
    return f"F1 {found['f1']:.1f}, {found['f1*']:.1f}*, {found['f1**']:.1f}**, {found['seconds']:.0f} s"


def print_tables(found: dict[Measurement, dict[str, Any]]) -> None:
    """Means and standard deviations over the seeds."""
    for encoder in dict.fromkeys(one.encoder for one in found):
        rows = []
        for variant in VARIANTS:
            some = [row for one, row in found.items() if (one.encoder, one.variant) == (encoder, variant)]
            if some:
                cells = [show([row[key] for row in some], 0 if key in COLUMNS[-2:] else 2) for key in COLUMNS]
                rows.append([variant, str(len(some)), *cells])
        print_table([encoder, "seeds", *COLUMNS], rows)


if __name__ == "__main__":
    sys.exit(main())
