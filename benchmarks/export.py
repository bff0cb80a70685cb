"""A kit in torch, and exported to ONNX in float32 and int8: speed, start-up, memory, size, and equal answers.

    python benchmarks/export.py --data DIR [--kit default] [--exports FOLDER] [--questions 1000] [--only speed]

DIR has glue/SST-2, glue/MRPC … and squad/ in their official layouts. Both exports are made first, or taken from FOLDER,
where they are kept. Every speed is measured in a process of its own: CPU time, which other programs disturb less than
the clock. Start-up is from the start of Python to the first answer. Memory is the process's highest. One task is SST-2
on its sentences, "all" are the kit's tasks on questions with their passages.

Scores and answers are those of the dev sets, of SQuAD the first questions. An answer is equal if its label or text is
the same, or its score within 0.05. Thresholds are those of each folder: an export has torch's, unless they were
measured again on it (`bertvision export --data`).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

FOLDERS = {"sst2": "glue/SST-2", "mrpc": "glue/MRPC", "stsb": "glue/STS-B", "rte": "glue/RTE", "cola": "glue/CoLA"}
FORMS = ("torch", "float32", "int8")
NEAR = 0.05
SPEED = """
import json, resource, sys, time
where, form, threads, tasks, texts, rounds = json.loads(sys.argv[1])
if form == "torch":
    import torch
    torch.set_num_threads(threads)
    import bertvision as bv
    model = bv.load(where, tasks, device="cpu", dtype="float32")
else:
    import bertvision_runtime
    model = bertvision_runtime.load(where, tasks, threads=threads)
texts = [tuple(text) if isinstance(text, list) else text for text in texts]
model.predict(texts[:1])
found = {"start": time.process_time()}
for size in (1, 8, 32):
    model.predict(texts[:size])
    best = []
    for _ in range(rounds):
        some = texts[: max(size, 16)]
        before = time.process_time()
        for first in range(0, len(some), size):
            model.predict(some[first : first + size])
        best.append(1000 * (time.process_time() - before) / len(some))
    found[str(size)] = min(best)
found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kit", default="default")
    parser.add_argument("--exports", type=Path)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--most", type=int, default=10_000, help="examples of each other task")
    parser.add_argument("--tasks", nargs="+", help="tasks whose answers are compared; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", choices=["speed", "answers"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        exports = make_exports(options.kit, options.exports or Path(made))
        examples = read_examples(options.data, options.questions, options.most)
        compared = {task: examples[task] for task in options.tasks or examples}
        if options.only != "answers":
            Console().print(measure_speed(options, exports, examples))
        if options.only != "speed":
            Console().print(compare_answers(options.kit, exports, compared))


def make_exports(kit: str, folder: Path) -> dict[str, Path]:
    from bertvision.export.write import export_model

    found = {form: folder / form for form in FORMS[1:]}
    for form, to in found.items():
        if not (to / "manifest.json").is_file():
            export_model(kit, to, int8=form == "int8")
    return found


def read_examples(data: Path, questions: int, most: int) -> dict[str, list[Any]]:
    from bertvision.tasks import TaskConfig, build_task, squad

    found = {
        task: build_task(TaskConfig(task, data=str(data / folder))).read("dev")[:most]
        for task, folder in FOLDERS.items()
    }
    (dev,) = (data / "squad").glob("dev-v2.0.json*")
    found["squad2"] = squad.read_squad(dev)[:questions]
    return found


# ---------------------------------------------------------------------- speed


def measure_speed(options: argparse.Namespace, exports: dict[str, Path], examples: dict[str, list[Any]]) -> Table:
    table = Table(title="CPU milliseconds a text, start-up in CPU seconds, memory and size in MB")
    for heading in ("tasks", "form", "threads", "one text", "batches of 8", "batches of 32", "start", "memory", "size"):
        table.add_column(heading, justify="right")
    cases = {
        "sst2": (["sst2"], [one.text for one in examples["sst2"][:32]]),
        "all": (None, [(one.text, one.text_pair) for one in examples["squad2"][:32]]),
    }
    for name, (tasks, texts) in cases.items():
        for form in FORMS:
            where = str(exports.get(form, options.kit))
            for threads in options.threads:
                given = json.dumps([where, form, threads, tasks, texts, options.rounds])
                done = subprocess.run([sys.executable, "-c", SPEED, given], capture_output=True, text=True, check=True)
                found = json.loads(done.stdout)
                size = sum(path.stat().st_size for path in Path(where).iterdir()) / 1e6 if form != "torch" else None
                figures = [f"{found[key]:.1f}" for key in ("1", "8", "32")]
                row = [name, form, str(threads), *figures, f"{found['start']:.2f}", f"{found['memory']:.0f}"]
                table.add_row(*row, "" if size is None else f"{size:.0f}")
    return table


# ---------------------------------------------------------------------- answers


def compare_answers(kit: str, exports: dict[str, Path], examples: dict[str, list[Any]]) -> Table:
    import bertvision_runtime

    import bertvision as bv

    table = Table(title="Scores on dev in percent, and answers that are equal to torch's")
    for heading in ("task", "examples", *FORMS, "float32 equal, %", "int8 equal, %"):
        table.add_column(heading, justify="right")
    models = {form: bertvision_runtime.load(exports[form]) for form in FORMS[1:]}
    models["torch"] = bv.load(kit, device="cpu", dtype="float32")
    losses = []
    for task, some in examples.items():
        texts = [one.text if one.text_pair is None else (one.text, one.text_pair) for one in some]
        answers = {form: [_answer(row[task]) for row in models[form].predict(texts, tasks=[task])] for form in FORMS}
        scores = {form: _score(task, answers[form], some) for form in FORMS}
        equal = [
            np.mean([_are_equal(*pair) for pair in zip(answers[form], answers["torch"], strict=True)])
            for form in FORMS[1:]
        ]
        losses.append(scores["torch"] - scores["int8"])
        figures = [f"{scores[form]:.2f}" for form in FORMS] + [f"{100 * share:.2f}" for share in equal]
        table.add_row(task, f"{len(some):,}", *figures)
    table.caption = f"int8 loses {np.mean(losses):.2f} on average and {max(losses):.2f} at most."
    return table


def _answer(result: Any) -> Any:
    found = result if isinstance(result, dict) else result.to_dict()
    return next(found[key] for key in ("label", "answer", "score") if key in found)


def _are_equal(one: Any, other: Any) -> bool:
    return abs(one - other) <= NEAR if isinstance(one, float) else bool(one == other)


def _score(task: str, answers: list[Any], examples: list[Any]) -> float:
    """The task's first metric; F1 for spans, at the threshold of the model."""
    from bertvision.evaluation.metrics import LABEL_METRICS, SCORE_METRICS, score_metrics
    from bertvision.evaluation.spans import official
    from bertvision.tasks.glue import GLUE

    if task == "squad2":
        gold = [tuple(answer.text for answer in one.answers or ()) for one in examples]
        return 100 * float(np.mean([official.measure(*pair)[1] for pair in zip(gold, answers, strict=True)]))
    own, targets = GLUE[task], np.array([one.target for one in examples])
    values = np.array([own.labels.index(one) for one in answers] if own.labels else answers)
    metrics = LABEL_METRICS if own.labels else SCORE_METRICS
    return float(score_metrics(metrics, own.metrics[:1], targets, values)[own.metrics[0]])


if __name__ == "__main__":
    main()
