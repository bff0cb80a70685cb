"""What encoding very many documents costs, and what limits it: plain arithmetic on measured rates, for docs/scale.md.

    python benchmarks/scale.py [--documents 1e9] [--tokens 200] [--rate NAME=TOKENS_PER_SECOND …] [--write-mb 620] …

Four things work at the same time, and the slowest sets the pace: the GPUs of the workers, the storage, its limit of
requests, and the driver, which tokenises all texts and hands them out. `--help` lists every figure and its origin.
"""

import argparse
import math
from dataclasses import dataclass

SHARD_TOKENS, SHARD_BYTES = 1 << 17, 256 << 20
"""A shard has at most so many tokens and bytes of states (docs/store_format.md)."""
FACTS = 80
"""Bytes per document besides its states: id, length, target, checksums."""
PART = 50 << 20
"""s3fs writes an object of twice this size and more in parts of this size."""
SQUAD_TOKENS = 171
"""Mean length of the sequences that the rates were measured on."""
WORKERS = (1, 10, 100, 1000)


@dataclass(frozen=True)
class Encoder:
    name: str
    layers: int
    """Without the embeddings."""
    hidden: int
    rate: float
    """Tokens per second of the frozen pass on one GPU."""
    source: str


def operations(layers: int, hidden: int, tokens: int = SQUAD_TOKENS) -> int:
    """Operations per token: the products of a layer (12 hidden² weights), and attention over `tokens`."""
    return layers * (24 * hidden**2 + 4 * tokens * hidden)


MINILM = Encoder("MiniLM-L6", 6, 384, 6_528e3, "measured")
GTE_SMALL = Encoder("gte-small", 12, 384, 4_881e3, "measured")
LARGE = Encoder("BERT-large", 24, 1024, 728e3, "measured")


def derive_base() -> Encoder:
    """BERT-base has not been measured. Between gte-small and BERT-large, the operations per second grow with the width;
    a straight line over log(width) gives those of width 768."""
    slow, fast = (one.rate * operations(one.layers, one.hidden) for one in (GTE_SMALL, LARGE))
    share = math.log(768 / GTE_SMALL.hidden) / math.log(LARGE.hidden / GTE_SMALL.hidden)
    rate = (slow + share * (fast - slow)) / operations(12, 768)
    return Encoder("BERT-base", 12, 768, round(rate, -4), "derived")


@dataclass(frozen=True)
class Kept:
    """What a store keeps of each document."""

    part: str
    layers: int | None
    """None: all, with the embeddings."""
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.part}, {f'{self.layers} layers' if self.layers else 'all layers'}, {self.dtype}"

    def bytes_of(self, encoder: Encoder, tokens: float) -> float:
        """Bytes of the states of a document."""
        state = encoder.hidden + 4 if self.dtype == "int8" else 2 * encoder.hidden
        return (tokens if self.part == "tokens" else 1) * (self.layers or encoder.layers + 1) * state


CHOICES = (
    Kept("tokens", None, "bfloat16"),
    Kept("tokens", None, "int8"),
    Kept("tokens", 4, "int8"),
    Kept("mean", None, "bfloat16"),
)
TIMED = (CHOICES[1], CHOICES[3])


@dataclass(frozen=True)
class Store:
    bytes: float
    shards: int
    requests: int


def outline(encoder: Encoder, kept: Kept, documents: float, tokens: float) -> Store:
    """The size of a store, and the requests that write it to an object store."""
    each = kept.bytes_of(encoder, tokens)
    per_shard = max(1, math.floor(min(SHARD_TOKENS / tokens, SHARD_BYTES / each)))  # documents
    shards = math.ceil(documents / per_shard)
    size = per_shard * (each + FACTS)
    requests = 1 if size < 2 * PART else 2 + math.ceil(size / PART)
    return Store(documents * (each + FACTS), shards, shards * requests)


def seconds(encoder: Encoder, store: Store, workers: int, settings: argparse.Namespace) -> dict[str, float]:
    """How long each of the four would take alone."""
    tokens = settings.documents * settings.tokens
    bandwidth = min(workers * settings.write_mb * 1e6, settings.storage_gb * 1e9)
    tokenising = tokens / (settings.tokenise * settings.driver_cores)
    return {
        "GPU": tokens / (encoder.rate * workers),
        "storage": store.bytes / bandwidth,
        "requests": store.requests / settings.requests,
        "driver": tokenising + store.shards * settings.row_ms / 1e3,
    }


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(settings: argparse.Namespace) -> str:
    """The three tables, in Markdown."""
    encoders = [MINILM, derive_base(), LARGE]
    encoders = [Encoder(**{**vars(one), **settings.rates.get(one.name, {})}) for one in encoders]
    tokens = settings.documents * settings.tokens
    cost = [
        [
            f"{one.name} ({one.layers} × {one.hidden})",
            f"{tokens / 1e9:,.0f}",
            f"{one.rate / 1e3:,.0f}, {one.source}",
            f"{tokens / one.rate / 3600:,.1f}",
        ]
        for one in encoders
    ]
    sizes, times = [], []
    for kept in CHOICES:
        for one in encoders:
            store = outline(one, kept, settings.documents, settings.tokens)
            sizes.append([kept.name, one.name, _bytes(store.bytes), f"{store.shards:,}", f"{store.requests:,}"])
            if kept in TIMED:
                cells = [_slowest(seconds(one, store, workers, settings)) for workers in WORKERS]
                times.append([kept.name, one.name, *cells])
    many = [f"{workers:,} worker{'s' if workers > 1 else ''}" for workers in WORKERS]
    tables = [
        table(["encoder", "billion tokens", "thousand tokens/s on one GPU", "GPU hours"], cost),
        table(["kept", "encoder", "size", "shards", "requests"], sizes),
        table(["kept", "encoder", *many], times),
    ]
    return "\n\n".join(tables)


def _slowest(found: dict[str, float]) -> str:
    name = max(found, key=lambda one: found[one])
    return f"{found[name] / 3600:,.1f} h, {name}"


def _bytes(count: float) -> str:
    return f"{count / 1e15:,.2f} PB" if count >= 1e15 else f"{count / 1e12:,.2f} TB"


def _read_rates(words: list[str]) -> dict[str, dict[str, object]]:
    rates: dict[str, dict[str, object]] = {}
    for word in words:
        name, _, rate = word.partition("=")
        if name not in (MINILM.name, "BERT-base", LARGE.name) or not float(rate) > 0:
            raise argparse.ArgumentTypeError(f"{word}: expected MiniLM-L6, BERT-base or BERT-large = tokens per second")
        rates[name] = {"rate": float(rate), "source": "yours"}
    return rates


def read_settings(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add(name: str, default: float, text: str) -> None:
        parser.add_argument(name, type=_positive, default=float(default), help=f"{text} (default: {default:,g})")

    add("--documents", 1e9, "documents")
    add("--tokens", 200, "tokens of a document on average, in one window: an assumption")
    add("--write-mb", 620, "MB/s that one worker writes: measured, LOG.md, 'Reading a store on a GPU'")
    add("--storage-gb", 12.5, "GB/s that the storage takes from all workers: an assumption, 100 Gbit/s")
    add("--requests", 3500, "writing requests per second that the storage takes: S3, for each prefix")
    add("--tokenise", 465e3, "tokens per second and core: measured, LOG.md, 'Several processes and machines'")
    add("--driver-cores", 16, "cores of the driver, which tokenises: an assumption")
    add("--row-ms", 1, "milliseconds of the driver for each shard: an assumption")
    parser.add_argument("--rate", action="append", default=[], metavar="NAME=TOKENS", help="tokens per second of a GPU")
    settings = parser.parse_args(words)
    try:
        settings.rates = _read_rates(settings.rate)
    except (argparse.ArgumentTypeError, ValueError) as error:
        parser.error(f"--rate {error}")
    return settings


def _positive(word: str) -> float:
    number = float(word)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{word} is not a positive number")
    return number


if __name__ == "__main__":
    print(report(read_settings()))
