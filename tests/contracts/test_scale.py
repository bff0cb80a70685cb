"""docs/scale.md shows what benchmarks/scale.py prints, and its figures are those of arithmetic by hand."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from bertvision.sources.store import Contents

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scale() -> Any:
    spec = importlib.util.spec_from_file_location("scale", ROOT / "benchmarks/scale.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COST, SIZE, TIME = 0, 1, 2


def row(scale: Any, table: int, *cells: str, words: tuple[str, ...] = ()) -> list[str]:
    """The cells after these in their row of a table."""
    lines = scale.report(scale.read_settings(list(words))).split("\n\n")[table].splitlines()
    found = [line.strip("| ").split(" | ") for line in lines]
    (one,) = [line[len(cells) :] for line in found if line[: len(cells)] == list(cells)]
    return one


def test_the_page_shows_what_the_script_prints(scale: Any) -> None:
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    tables = scale.report(scale.read_settings([])).split("\n\n")
    assert len(tables) == 3
    for table in tables:
        assert f"\n\n{table}\n\n" in page, "run python benchmarks/scale.py and put its tables into docs/scale.md"


def test_cost_and_size_are_those_of_arithmetic_by_hand(scale: Any) -> None:
    # 1e9 documents of 200 tokens at 728,000 tokens/s: 2e11 / 728,000 / 3,600.
    assert row(scale, COST, "BERT-large (24 × 1024)") == ["200", "728, measured", "76.3"]
    # 7 states of 384 values and a scale of 4 bytes for each token: 200 · 7 · 388 = 543,200 bytes, and 80 more. A shard
    # of 256 MiB holds 494 of them: 2,024,292 shards of 268 MB, each in 6 parts, begun and completed.
    assert row(scale, SIZE, "tokens, all layers, int8", "MiniLM-L6") == ["543.28 TB", "2,024,292", "16,194,336"]
    # 13 means of 768 values, 2 bytes each: 19,968. A shard ends at 131,072 tokens: 655 documents, one request.
    assert row(scale, SIZE, "mean, all layers, bfloat16", "BERT-base") == ["20.05 TB", "1,526,718", "1,526,718"]


def test_the_slowest_of_four_is_named(scale: Any) -> None:
    mean = ("mean, all layers, bfloat16", "BERT-large")
    # GPU: 76.3 h by 1, 7.63 by 10. Driver: 2e11 / (465,000 · 16) s = 7.47 h, and 1,526,718 ms = 0.42 h.
    assert row(scale, TIME, *mean) == ["76.3 h, GPU", "7.9 h, driver", "7.9 h, driver", "7.9 h, driver"]
    # 5.140 PB at 620 MB/s a worker: 2,302.9 h. From 21 workers on, 12.5 GB/s of the storage: 114.2 h.
    tokens = ("tokens, all layers, int8", "BERT-large")
    assert row(scale, TIME, *tokens) == [
        "2,302.9 h, storage",
        "230.3 h, storage",
        "114.2 h, storage",
        "114.2 h, storage",
    ]
    # 1,526,718 requests, one a second: 424.1 h.
    assert row(scale, TIME, *mean, words=("--requests", "1")) == ["424.1 h, requests"] * 4
    assert row(scale, COST, "BERT-large (24 × 1024)", words=("--rate", "BERT-large=1e6")) == [
        "200",
        "1,000, yours",
        "55.6",
    ]


def test_the_derived_rate_lies_between_the_measured_efficiencies(scale: Any) -> None:
    base = scale.derive_base()
    assert base.source == "derived"
    # Operations per token, layers · (24 · hidden² + 4 · 171 · hidden): gte-small 45,619,200, BERT-base 176,173,056 and
    # BERT-large 620,789,760. At 222.7 TFLOP/s as gte-small 1,263,912 tokens/s, at 451.9 as BERT-large 2,565,290.
    # Width 768 is log(2) / log(8 / 3) = 0.7067 of the way: 384.7 TFLOP/s, 2,183,746 tokens/s.
    assert scale.operations(12, 768) == 176_173_056
    assert base.rate == 2_180_000 and 1_263_912 < base.rate < 2_565_290


@pytest.mark.parametrize(
    ("part", "layers", "dtype"), [("tokens", None, "int8"), ("tokens", 4, "int8"), ("mean", None, "bfloat16")]
)
def test_sizes_are_those_of_the_store(scale: Any, part: str, layers: int | None, dtype: str) -> None:
    encoder, documents, tokens = scale.LARGE, 1000, 200
    stored = Contents((part,), tuple(range(layers or 25)), 1024, True, dtype)  # type: ignore[arg-type]
    found = scale.outline(encoder, scale.Kept(part, layers, dtype), documents, tokens)
    assert found.bytes == stored.store_bytes(documents, documents * tokens)


@pytest.mark.parametrize(
    "words", [["--rate", "BERT=1"], ["--rate", "BERT-base=0"], ["--tokens", "-1"], ["--tokens", "nan"]]
)
def test_figures_that_are_none_are_refused(scale: Any, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        scale.read_settings(words)
