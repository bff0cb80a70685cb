"""How each shuffle reads a store: number and size of reads, modelled speed on a spinning disk, and quality of mixing.

    python benchmarks/reading_order.py

Nothing is actually read: everything follows from the plan, the positions of the windows, and what `StoredSource`
fetches together. The windows come from SQuAD 2.0's train file if BERTVISION_REAL_DATA is a folder with
squad/train-v2.0.partial.json.gz (384 tokens, overlap 128); otherwise their lengths are drawn at random.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bertvision.data.packing import plan_pass
from bertvision.data.windows import Features, build_features
from bertvision.encoder.loading import EMBEDDED, load_tokenizer
from bertvision.encoder.states import StateShape
from bertvision.kinds import SPAN
from bertvision.sources.store import Contents, Manifest, Store, StoredSource
from bertvision.sources.store.format import outline_shard, plan_shards
from bertvision.sources.store.location import open_location
from bertvision.tasks.squad import read_squad

MINILM, BERT_LARGE = StateShape(7, 384, False), StateShape(25, 1024, False)
MAX_LENGTH, OVERLAP, ROWS = 384, 128, 16
STATES = {
    "MiniLM int8": (MINILM, "int8"),
    "MiniLM float16": (MINILM, "float16"),
    "BERT-large float16": (BERT_LARGE, "float16"),
}
LOOK_AHEAD = (0, 512 << 20, 1 << 30, 2 << 30)
NEIGHBOURS = 64
DISK_BYTES, DISK_RATE, HALF_TURN = 4e12, 150e6, 0.5 * 60 / 7200
SHORTEST_SEEK, LONGEST_SEEK = 0.001, 0.015


@dataclass
class Train:
    """The windows of a training set; only the features' lengths and examples are used."""

    features: Features
    articles: np.ndarray  # (window)
    questions: int
    origin: str


def read_train() -> Train:
    folder = os.environ.get("BERTVISION_REAL_DATA")
    if folder:
        examples = read_squad(Path(folder) / "squad" / "train-v2.0.partial.json.gz")
        found = build_features(examples, load_tokenizer(EMBEDDED), SPAN, True, MAX_LENGTH, OVERLAP)
        articles = np.unique([example.group or "" for example in examples], return_inverse=True)[1][found.example]
        questions, origin = len(examples), "SQuAD 2.0, partial train"
    else:
        questions, origin = 103_782, "random lengths (log-normal, median 161, sigma 0.34, 32 to 384)"
        drawn = np.random.default_rng(0).lognormal(np.log(161), 0.34, questions)  # (window)
        found = make_features(drawn.clip(32, MAX_LENGTH).astype(np.int64))
        articles = np.arange(questions) // 235
    title = f"{origin}: {questions:,} questions, {len(found):,} windows, {found.lengths.mean():.1f} tokens per window"
    return Train(found, articles, questions, title)


def make_features(lengths: np.ndarray) -> Features:
    """Build windows of these lengths. Each token's id is its position in the store, so that a fake encoder can look up
    its states."""
    tokens, windows = int(lengths.sum()), len(lengths)
    nothing = np.zeros(windows, dtype=np.int32)
    return Features(
        input_ids=np.arange(tokens, dtype=np.int32),
        type_ids=np.zeros(tokens, dtype=np.int8),
        lengths=lengths.astype(np.int32),
        starts=np.cumsum(lengths, dtype=np.int64) - lengths,
        example=np.arange(windows, dtype=np.int32),
        offsets=np.zeros((tokens, 2), dtype=np.int32),
        start=nothing,
        end=nothing,
        target=np.zeros(windows, dtype=np.float32),
    )


def contents_of(shape: StateShape, dtype: str) -> Contents:
    return Contents.of(shape, range(shape.layers), ("tokens",), dtype)


def build_table(title: str, note: str, columns: Iterable[str], left: int = 1) -> Table:
    """Build a table; the first `left` columns are text and left-aligned."""
    table = Table(title=title, caption=note, title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number >= left else "left")
    return table


def tabulate_order(train: Train) -> Table:
    note = (
        "Model of a spinning disk: 150 MB/s; a jump takes half a turn at 7,200 rpm (4.2 ms) and a seek of 1 ms + "
        "14 ms · √(distance / 4 TB), or the time to read the bytes in between if that is shorter. Articles and "
        f"neighbourhoods (runs of {NEIGHBOURS} consecutive windows): the mean number of different ones in a batch of "
        f"{ROWS}. ρ: rank correlation between the position in the epoch and the position in the store."
    )
    columns = ("states", "shuffle", "look-ahead", "GB", "reads", "MB/read", "mean jump MB", "MB/s", "of 150")
    table = build_table("Order of reading", note, [*columns, "articles", "neighbourhoods", "ρ"], left=2)
    for name, (shape, dtype) in STATES.items():
        store = outline_store(train.features, contents_of(shape, dtype))
        for shuffle in ("windows", "blocks"):
            epoch = plan_pass(train.features.lengths, {(1, 1.0)}, 0, ROWS, shuffle=shuffle)
            mixing = describe_mixing(epoch.steps, train.articles)
            for memory in LOOK_AHEAD:
                source = StoredSource(store, train.features, epoch.steps, ("tokens",), memory=memory, pools=epoch.pools)
                starts, sizes = find_reads(source)
                jumps = np.abs(starts[1:] - (starts + sizes)[:-1])  # (read - 1)
                rate = sizes.sum() / model_seconds(starts, sizes)
                table.add_row(
                    name, shuffle, f"{memory >> 20:,} MB" if memory else "one batch",
                    f"{store.manifest.bytes / 1e9:,.0f}", f"{len(sizes):,}", f"{sizes.mean() / 1e6:.2f}",
                    f"{jumps.mean() / 1e6:,.0f}", f"{rate / 1e6:.0f}", f"{rate / DISK_RATE:.2f}", *mixing,
                )  # fmt: skip
        table.add_section()
    return table


def outline_store(features: Features, contents: Contents) -> Store:
    """A store that exists only as a manifest."""
    ids = [""] * (int(features.example[-1]) + 1)
    ranges = plan_shards(features, contents)
    shards = [outline_shard(features, ids, contents, "", first, stop)[0] for first, stop in ranges]
    return Store(open_location("nowhere"), Manifest({}, contents, shards, {}))


def find_reads(source: StoredSource) -> tuple[np.ndarray, np.ndarray]:
    """Start and size of every read of a pass, in order, if the shards are contiguous on disk."""
    reading, shards = source.reading, source.store.manifest.shards
    before = np.cumsum([0, *(shard.bytes for shard in shards)])  # (shard + 1)
    everything = np.arange(len(reading.lengths))  # (window)
    position = before[reading.shard_of(everything)] + reading.start_of("tokens", everything)  # (window)
    starts, sizes = [], []
    for group in source.groups():
        windows = np.sort(np.concatenate([source.plan[step] for step in group]))  # a store is in the windows' order
        first, stop = position[windows], position[windows] + reading.size_of("tokens", windows)
        begins = np.flatnonzero(np.append(True, first[1:] != stop[:-1]))  # adjacent windows are one read
        ends = np.append(begins[1:], len(windows)) - 1
        starts.append(first[begins])
        sizes.append(stop[ends] - first[begins])
    return np.concatenate(starts), np.concatenate(sizes)


def model_seconds(starts: np.ndarray, sizes: np.ndarray) -> float:
    """Seconds a spinning disk needs for these reads."""
    gaps = starts[1:] - (starts + sizes)[:-1]  # (read - 1) negative: backwards
    jumps = HALF_TURN + SHORTEST_SEEK + (LONGEST_SEEK - SHORTEST_SEEK) * np.sqrt(np.abs(gaps) / DISK_BYTES)
    over = np.where(gaps >= 0, gaps / DISK_RATE, np.inf)  # reading through the gap instead of seeking
    return float(sizes.sum() / DISK_RATE + np.minimum(jumps, over).sum())


def describe_mixing(batches: list[np.ndarray], articles: np.ndarray) -> list[str]:
    full = np.stack([batch for batch in batches if len(batch) == ROWS])  # (batch, row)
    order = np.concatenate(batches)  # (window)
    kinds = [np.mean([len(np.unique(row)) for row in kind]) for kind in (articles[full], full // NEIGHBOURS)]
    return [*(f"{kind:.2f}" for kind in kinds), f"{np.corrcoef(order, np.arange(len(order)))[0, 1]:+.3f}"]


def main() -> None:
    console = Console(width=150)
    train = read_train()
    console.print(train.origin)
    console.print(tabulate_order(train))


if __name__ == "__main__":
    main()
