"""The methods of benchmarks/user_tasks.py. Each measurement runs in a process of its own:

    python benchmarks/user_methods.py '{"task": "trec", "method": "tfidf", "seed": 0, "limit": null, "encoder": "…"}'

The last line of its output is a JSON object. No method but `fit` uses BERTVision. A method fits on train and returns a
function that predicts the labels of new texts, and facts about the fit.
"""

import csv
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TASKS = {
    "trec": ("tsv", "label"), "subj": ("tsv", "label"), "snips": ("tsv", "label"), "sst5": ("tsv", "label"),
    "hwu64": ("tsv", "label"), "banking77": ("csv", "category"),
}  # fmt: skip
"""Task → extension of its files, and the column with the label. The text is in the column "text"."""
DATA = "BERTVISION_REAL_DATA"
MAX_LENGTH = 256
TFIDF_STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""C of logistic regression, chosen on a held-out tenth of train."""
STATE_STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""The same for standardised inputs."""
BATCH = 32
EPOCHS, WARM_UP, DECAY, CLIP = 3, 0.1, 0.01, 1.0
ENCODER_RATE, OUTPUT_RATE = 2e-4, 2e-3
CHUNK = 50
"""Batches whose rows are sorted by length together."""

Predict = Callable[[list[str]], list[str]]
Method = Callable[["Job"], tuple[Predict, dict[str, Any]]]


@dataclass(frozen=True)
class Rows:
    texts: list[str]
    labels: list[str]


@dataclass(frozen=True)
class Job:
    """One measurement, before it starts."""

    task: str
    train: Rows
    file: Path
    """The rows of train as a user has them."""
    seed: int
    encoder: str
    """Folder with the encoder."""
    work: Path
    """An empty folder."""


def measure(task: str, method: str, seed: int, limit: int | None, encoder: str) -> dict[str, Any]:
    """Fit on train, predict test, and return the accuracy and the CPU seconds up to the fitted model."""
    started = time.monotonic()
    train, test = (read(task, split, limit) for split in ("train", "test"))
    with tempfile.TemporaryDirectory() as work:
        file = path_of(task, "train") if limit is None else write(task, train, Path(work))
        predict, facts = METHODS[method](Job(task, train, file, seed, encoder, Path(work)))
        cpu_fit, wall_fit = cpu_seconds(), time.monotonic() - started
        predicted = predict(test.texts)
    right = sum(one == wanted for one, wanted in zip(predicted, test.labels, strict=True))
    return {
        "accuracy": 100 * right / len(test.labels), "rows": len(train.labels), "test_rows": len(test.labels),
        "cpu_fit": round(cpu_fit, 2), "wall_fit": round(wall_fit, 2), **facts,
    }  # fmt: skip


def cpu_seconds() -> float:
    """User and system seconds since the start of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------------- data


def path_of(task: str, split: str) -> Path:
    return Path(os.environ[DATA], "user", task, f"{split}.{TASKS[task][0]}")


def read(task: str, split: str, limit: int | None) -> Rows:
    """Read a file; with a limit, a random sample of its rows."""
    ending, label = TASKS[task]
    with path_of(task, split).open(encoding="utf-8", newline="" if ending == "csv" else "\n") as file:
        # TSV files are not quoted.
        cells = list(csv.reader(file)) if ending == "csv" else [line.rstrip("\n").split("\t") for line in file]
    text_at, label_at = cells[0].index("text"), cells[0].index(label)
    rows = [(row[text_at], row[label_at]) for row in cells[1:]]
    if limit is not None and limit < len(rows):
        rows = [rows[at] for at in sorted(random.Random(0).sample(range(len(rows)), limit))]
    return Rows([text for text, _ in rows], [label for _, label in rows])


def write(task: str, rows: Rows, folder: Path) -> Path:
    """Write a sample in the format of the task's files."""
    ending, label = TASKS[task]
    path = folder / f"train.{ending}"
    cells = [("text", label), *zip(rows.texts, rows.labels, strict=True)]
    with path.open("w", encoding="utf-8", newline="") as file:
        if ending == "csv":
            csv.writer(file).writerows(cells)
        else:
            file.writelines("\t".join(row) + "\n" for row in cells)
    return path


# ---------------------------------------------------------------------- logistic regression


def hold_out(labels: Sequence[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of nine tenths and of the held-out tenth, stratified where every label has enough rows."""
    from sklearn.model_selection import train_test_split

    counts = np.unique(labels, return_counts=True)[1]
    stratify = labels if counts.min() > 1 and len(labels) >= 10 * len(counts) else None
    used, held = train_test_split(np.arange(len(labels)), test_size=0.1, random_state=seed, stratify=stratify)
    return used, held


def choose_strength(
    prepare: Callable[[], Any], inputs: Any, labels: Sequence[str], strengths: Sequence[float], seed: int
) -> tuple[float, float]:
    """The best accuracy on the held-out tenth, and its strength."""
    used, held = hold_out(labels, seed)
    names = np.array(labels)
    prepared = prepare()
    given, judged = prepared.fit_transform(take(inputs, used)), prepared.transform(take(inputs, held))
    with one_thread():
        scores = [regression(strength).fit(given, names[used]).score(judged, names[held]) for strength in strengths]
    best = int(np.argmax(scores))
    return 100 * float(scores[best]), strengths[best]


def take(inputs: Any, rows: np.ndarray) -> Any:
    return inputs[rows] if isinstance(inputs, np.ndarray) else [inputs[row] for row in rows]


def regression(strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=2000)


def refit(prepare: Callable[[], Any], inputs: Any, labels: Sequence[str], strength: float) -> Any:
    from sklearn.pipeline import make_pipeline

    with one_thread():
        return make_pipeline(prepare(), regression(strength)).fit(inputs, np.array(labels))


def one_thread() -> Any:
    """Logistic regression calls OpenBLAS for many small products. Two threads spend most of their time spinning: they
    took 20 to 40 times the CPU seconds of one thread on TREC, and were slower."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, user_api="blas")


def fit_tfidf(job: Job) -> tuple[Predict, dict[str, Any]]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    def prepare() -> Any:
        return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)

    rows = job.train
    held_out, strength = choose_strength(prepare, rows.texts, rows.labels, TFIDF_STRENGTHS, job.seed)
    model = refit(prepare, rows.texts, rows.labels, strength)
    return lambda texts: model.predict(texts).tolist(), {"held_out": held_out, "chosen": f"C {strength:g}"}


def fit_last_layer(job: Job) -> tuple[Predict, dict[str, Any]]:
    return fit_layer(job, every_layer=False)


def fit_best_layer(job: Job) -> tuple[Predict, dict[str, Any]]:
    return fit_layer(job, every_layer=True)


def fit_layer(job: Job, every_layer: bool) -> tuple[Predict, dict[str, Any]]:
    """Logistic regression on the standardised mean over tokens of the last or of the best layer."""
    from sklearn.preprocessing import StandardScaler

    encode = Means(*load(job.encoder), every_layer)
    states, labels = encode(job.train.texts), job.train.labels  # (row, layer, hidden)
    tried = [
        choose_strength(StandardScaler, states[:, layer], labels, STATE_STRENGTHS, job.seed)
        for layer in range(states.shape[1])
    ]
    best = max(range(len(tried)), key=lambda layer: (tried[layer][0], layer))
    held_out, strength = tried[best]
    model = refit(StandardScaler, states[:, best], labels, strength)
    chosen = f"layer {best}, C {strength:g}" if every_layer else f"C {strength:g}"
    return lambda texts: model.predict(encode(texts)[:, best]).tolist(), {"held_out": held_out, "chosen": chosen}


def fit_model2vec(job: Job) -> tuple[Predict, dict[str, Any]]:
    """Logistic regression on the standardised embeddings of a static model, distilled from the encoder."""
    from model2vec.distill import distill
    from sklearn.preprocessing import StandardScaler

    before = cpu_seconds()
    static = distill(job.encoder)
    distilled = cpu_seconds() - before
    embeddings, labels = np.asarray(static.encode(job.train.texts), dtype=np.float32), job.train.labels  # (row, hidden)
    held_out, strength = choose_strength(StandardScaler, embeddings, labels, STATE_STRENGTHS, job.seed)
    model = refit(StandardScaler, embeddings, labels, strength)

    def predict(texts: list[str]) -> list[str]:
        return model.predict(np.asarray(static.encode(texts), dtype=np.float32)).tolist()

    return predict, {"held_out": held_out, "chosen": f"C {strength:g}", "distill_cpu": round(distilled, 2)}


# ---------------------------------------------------------------------- plain transformers


class Means:
    """Means over the tokens of each text: of the last layer, or of the embeddings and every layer."""

    def __init__(self, tokenizer: Any, model: Any, every_layer: bool) -> None:
        self.tokenizer, self.model, self.every_layer = tokenizer, model, every_layer

    def __call__(self, texts: list[str]) -> np.ndarray:
        """(row, layer, hidden)"""
        import torch

        ids = tokenize(self.tokenizer, texts)
        order = np.argsort([len(row) for row in ids], kind="stable")
        found: list[Any] = [None] * len(ids)
        with torch.inference_mode():
            for first in range(0, len(order), BATCH):
                rows = order[first : first + BATCH]
                tokens, mask = pad([ids[row] for row in rows], self.tokenizer.pad_token_id)  # (row, token) each
                states = self.model(tokens, attention_mask=mask, output_hidden_states=self.every_layer)
                layers = states.hidden_states if self.every_layer else [states.last_hidden_state]
                means = torch.stack([mean(layer, mask) for layer in layers], dim=1)  # (row, layer, hidden)
                for row, one in zip(rows, means.numpy(), strict=True):
                    found[row] = one
        return np.stack(found)


def load(encoder: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    return AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder, dtype=torch.float32).eval()


def tokenize(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    found: list[list[int]] = tokenizer(texts, truncation=True, max_length=MAX_LENGTH, padding=False)["input_ids"]
    return found


def pad(rows: list[list[int]], padding: int) -> tuple[Any, Any]:
    """(row, token) token ids, and 1 for tokens, 0 for padding."""
    import torch

    longest = max(len(row) for row in rows)
    tokens = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return tokens, mask


def mean(states: Any, mask: Any) -> Any:
    """(row, hidden) the mean over tokens, special tokens included."""
    weights = mask.unsqueeze(2).to(states.dtype)  # (row, token, 1)
    return (states * weights).sum(1) / weights.sum(1)


def finetune(job: Job) -> tuple[Predict, dict[str, Any]]:
    """Fine-tune all weights; a linear output layer reads the mean over tokens, with a higher learning rate."""
    import torch
    from torch import nn

    torch.manual_seed(job.seed)
    tokenizer, model = load(job.encoder)
    names = sorted(set(job.train.labels))
    output = nn.Linear(model.config.hidden_size, len(names))
    nn.init.normal_(output.weight, std=model.config.initializer_range)
    nn.init.zeros_(output.bias)
    dropout = nn.Dropout(model.config.hidden_dropout_prob)
    ids = tokenize(tokenizer, job.train.texts)
    targets = torch.tensor([names.index(label) for label in job.train.labels])  # (row)
    drawing = np.random.default_rng(job.seed)
    batches = [batch for _ in range(EPOCHS) for batch in draw_batches([len(row) for row in ids], drawing)]
    optimizer = torch.optim.AdamW([*groups(model, ENCODER_RATE), *groups(output, OUTPUT_RATE)], fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, len(batches)))
    weights = [*model.parameters(), *output.parameters()]
    model.train()
    for batch in batches:
        tokens, mask = pad([ids[row] for row in batch], tokenizer.pad_token_id)  # (row, token) each
        pooled = mean(model(tokens, attention_mask=mask).last_hidden_state, mask)  # (row, hidden)
        loss = nn.functional.cross_entropy(output(dropout(pooled)), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        schedule.step()
    model.eval()

    def predict(texts: list[str]) -> list[str]:
        means = Means(tokenizer, model, every_layer=False)(texts)[:, 0]  # (row, hidden)
        with torch.inference_mode():
            logits = output(torch.from_numpy(means))  # (row, label)
        return [names[at] for at in logits.argmax(1).tolist()]

    return predict, {"steps": len(batches), "loss": round(float(loss), 4)}


def draw_batches(lengths: list[int], drawing: np.random.Generator) -> Iterator[np.ndarray]:
    """The batches of an epoch: rows of similar length, in random order."""
    order = drawing.permutation(len(lengths))
    chunks = [order[first : first + CHUNK * BATCH] for first in range(0, len(order), CHUNK * BATCH)]
    by_length = np.concatenate([chunk[np.argsort(np.take(lengths, chunk), kind="stable")] for chunk in chunks])
    batches = [by_length[first : first + BATCH] for first in range(0, len(by_length), BATCH)]
    return (batches[at] for at in drawing.permutation(len(batches)))


def groups(module: Any, lr: float) -> list[dict[str, Any]]:
    """Weight decay on matrices only."""
    weights = list(module.parameters())
    return [
        {"params": [weight for weight in weights if weight.ndim > 1], "lr": lr, "weight_decay": DECAY},
        {"params": [weight for weight in weights if weight.ndim == 1], "lr": lr, "weight_decay": 0.0},
    ]


def rate(step: int, steps: int) -> float:
    """Linear warm-up, then linear decay to 0."""
    rise = max(1, round(WARM_UP * steps))
    return (step + 1) / rise if step < rise else (steps - step) / max(1, steps - rise)


# ---------------------------------------------------------------------- ours


def fit(job: Job) -> tuple[Predict, dict[str, Any]]:
    """`bertvision fit` with its defaults. Test is predicted by the saved model."""
    from bertvision.models.fit import Options, fit_table
    from bertvision.models.model import Model
    from bertvision.models.save import save_fit
    from bertvision.tasks.own_table import read_own_table

    table = read_own_table(job.file, text="text", label=TASKS[job.task][1])
    assert (table.texts, table.labels) == (job.train.texts, job.train.labels), "every method reads the same rows"
    found = fit_table(table, Options(seed=job.seed))
    model = Model(save_fit(found, job.work / "model", str(job.file)))
    best = found.board.find(found.board.chosen)
    assert best is not None
    facts = {
        "chosen": best.name, "held_out": best.cv, "encode_seconds": round(found.encode_seconds, 2),
        "choose_seconds": round(found.seconds - found.encode_seconds, 2),
        "try_seconds": round(sum(trial.seconds for trial in found.trials if not trial.members), 2),
        "leaderboard": [line.to_dict() for line in found.board.lines],
    }  # fmt: skip
    return lambda texts: [str(row.get("label")) for row in model.predict(texts)], facts


METHODS: dict[str, Method] = {
    "tfidf": fit_tfidf, "last": fit_last_layer, "best_layer": fit_best_layer, "model2vec": fit_model2vec,
    "finetune": finetune, "fit": fit,
}  # fmt: skip
SEEDED = ("finetune", "fit")
"""Methods that are measured with several seeds."""


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
