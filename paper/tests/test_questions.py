"""The main page: six questions, whose numbers are computed again here from the kept files."""

import dataclasses
import json
import re
from copy import deepcopy
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from bertvision.report.wording import signed
from paper.kept import KEPT, at_lower_rate, load_kept, load_rates
from paper.page import FOLDER, MAIN, anchor
from paper.questions import all_questions, amount, better_encoders, what_heads_add

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / MAIN, *sorted((DOCS / FOLDER).glob("*.md"))]
QUESTIONS = [
    "What do heads add after fine-tuning?",
    "How does that depend on how well the encoder was fine-tuned?",
    "What can an untouched encoder do, and at what cost?",
    "How little data is enough?",
    "Which head should I use?",
    "Which of the papers' claims hold?",
]
MOST_BYTES, MOST_ALT = 30_000, 300


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """Question → the text below it on the main page."""
    parts = (DOCS / MAIN).read_text(encoding="utf-8").split("\n## ")
    return {heading: text.strip() for heading, _, text in (part.partition("\n") for part in parts[1:])}


# ---------------------------------------------------------------------- the pages


def test_the_main_page_is_short() -> None:
    assert len((DOCS / MAIN).read_bytes()) <= MOST_BYTES


def test_each_of_six_questions_has_a_sentence_a_picture_and_a_small_table(answers: dict[str, str]) -> None:
    assert list(answers) == [*QUESTIONS, "Appendix"]
    for question in QUESTIONS:
        sentence, picture, table, *rest = answers[question].split("\n\n")
        assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 450
        (alt,) = re.findall(r"^!\[([^\]]*)\]\(results/\w+\.svg\)$", picture)
        assert 20 < len(alt) < MOST_ALT
        assert all(line.startswith("|") for line in table.split("\n"))
        rows = table.split("\n")[2:]
        assert len(rows) <= (15 if question == QUESTIONS[-1] else 10)
        assert not any("![" in part or part.startswith("|") for part in rest)
        assert rest[-1].startswith("All scores: [")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = [line.removeprefix("## ") for line in text.split("\n") if line.startswith("## ")]
    assert len({*headings}) == len(headings)  # two with the same title would share an anchor
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("https://")]
    assert links
    for path, _, wanted in (link.partition("#") for link in links):
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), path
        if wanted:
            lines = target.read_text(encoding="utf-8").split("\n")
            assert wanted in {anchor(line.lstrip("# ").replace("\\", "")) for line in lines if line.startswith("#")}


def test_every_appendix_page_has_an_introduction_and_contents_and_is_listed(answers: dict[str, str]) -> None:
    for page in PAGES[1:]:
        title, about, contents, *_ = page.read_text(encoding="utf-8").split("\n\n")
        assert title.startswith("# ") and about.endswith("[Back to the results](../results.md).")
        assert all(line.startswith("- [") for line in contents.split("\n"))
        assert f"({FOLDER}/{page.name})" in answers["Appendix"]


def test_every_picture_is_shown_on_a_page() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    for picture in (DOCS / FOLDER).glob("*.svg"):
        assert any(picture.name in text for text in texts)


# ---------------------------------------------------------------------- the numbers


class Runs:
    """All seeds of an experiment, straight from the kept files."""

    def __init__(self, pattern: str) -> None:
        self.runs = [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob(f"{pattern}_seed?.json"))
        ]
        assert self.runs, pattern

    def models(self, epochs: str) -> list[str]:
        """Heads on all of the data that every seed has, without the control."""
        shots = [run["snapshots"].get(epochs, {}) for run in self.runs]
        names = [name for name, model in shots[0].items() if model.get("head") and model.get("data_fraction", 1) == 1]
        return [name for name in names if name != "last_linear" and all(name in shot for shot in shots)]

    def scores(self, epochs: str, model: str, key: str = "forced_f1", split: str = "dev") -> list[float]:
        return [run["snapshots"][epochs][model]["scores"][split][key] for run in self.runs]

    def gaps(self, epochs: str, model: str, other: str, key: str = "forced_f1", split: str = "dev") -> list[float]:
        scores = [self.scores(epochs, name, key, split) for name in (model, other)]
        return [ours - theirs for ours, theirs in zip(*scores, strict=True)]


def best(runs: list[Runs], epochs: str, key: str = "forced_f1") -> tuple[Runs, str]:
    """The best head on held-out data, and its runs."""
    heads = [(one, name) for one in runs for name in one.models(epochs)]
    return max(heads, key=lambda head: fmean(head[0].scores(epochs, head[1], key, "held_out")))


def test_what_heads_add_is_computed_from_the_last_snapshots(answers: dict[str, str]) -> None:
    gaps = []
    for encoder in ("gte", "minilm"):
        one, head = best([Runs(f"squad2_{encoder}"), Runs(f"squad2_{encoder}_kernels")], "2")
        gaps.append(one.gaps("2", head, "last_linear"))
        one, head = best([Runs(f"answerable_{encoder}")], "3", "accuracy")
        gaps.append(one.gaps("3", head, "last_linear", "accuracy"))
    metrics = {"cola": "matthews", "sst2": "accuracy", "mrpc": "accuracy", "stsb": "pearson", "rte": "accuracy"}
    for task, key in metrics.items():
        one, head = best([Runs(task), Runs(f"{task}_zoo")], "3", key)
        gaps.append(one.gaps("3", head, "last_linear", key))
    means = [fmean(gap) for gap in gaps]
    always = sum(min(gap) > 0 for gap in gaps)
    assert answers[QUESTIONS[0]].startswith(
        f"{amount(median(means))}: after 2 to 3 epochs of fine-tuning, the best head differs from the control by "
        f"{signed(min(means))} to {signed(max(means))} points (median {signed(median(means))}), and beats it with "
        f"every seed on {always} of 9 tasks."
    )


def test_gains_on_the_worst_and_the_best_encoder_are_computed_from_their_runs(answers: dict[str, str]) -> None:
    sentence = answers[QUESTIONS[1]].split("\n")[0]
    assert sentence.startswith("The better the encoder, the less a head adds: ")
    for short, title in (("gte", "gte-small"), ("minilm", "all-MiniLM-L6-v2")):
        pairs = []
        for epochs in ("0.3", "1", "2"):
            for pattern in ("rates/squad2_{}{}_lr5e-05", "squad2_{}{}"):
                one, head = best([Runs(pattern.format(short, which)) for which in ("", "_kernels")], epochs)
                pairs.append((fmean(one.scores(epochs, "encoder")), fmean(one.gaps(epochs, head, "last_linear"))))
        one, head = best([Runs(f"squad2_{short}_full1")], "1")
        pairs.append((fmean(one.scores("1", "encoder")), fmean(one.gaps("1", head, "last_linear"))))
        (worst, first), (top, last) = min(pairs), max(pairs)
        assert f"{signed(first)} to {signed(last)} with {title} ({worst:.2f} to {top:.2f})" in sentence


def test_shares_of_fine_tuning_and_costs_are_computed_from_the_untouched_runs(answers: dict[str, str]) -> None:
    sentence = answers[QUESTIONS[2]].split("\n")[0]
    for short, title in (("gte", "gte-small"), ("minilm", "all-MiniLM-L6-v2")):
        own, curve = Runs(f"untouched_{short}"), Runs(f"squad2_{short}")
        _, head = best([own], "0")
        share = 100 * fmean(own.scores("0", head)) / fmean(curve.scores("3", "encoder"))
        again = Runs(f"again/untouched_{short}").runs[0]["snapshots"]["0"][head]
        tuned = curve.runs[0]["snapshots"]
        passes = again["tokens"] / tuned["1"]["encoder"]["tokens"]
        epochs = 3 * tuned["3"]["encoder"]["tokens"] / tuned["1"]["encoder"]["tokens"]
        of = " of the answerable-only F1" if short == "gte" else ""
        costs = f"{passes:.0f} passes instead of {epochs:.0f}, {again['seconds']:.0f} s"
        assert f"{share:.0f} %{of} with {title} ({costs}" in sentence


def test_less_data_is_compared_with_all_of_it_and_with_the_control(answers: dict[str, str]) -> None:
    runs = [Runs("squad2_gte"), Runs("squad2_minilm")]
    whole, control = (
        [fmean(one.gaps("1", "adapter_386_skip_data_fraction0.1", other)) for one in runs]
        for other in ("adapter_386_skip", "last_linear")
    )
    assert min(whole) > -1  # so that a tenth is enough
    sentence = answers[QUESTIONS[3]].split("\n")[0]
    assert sentence.startswith("10 % of the data is enough for a head to stay within 1 point ")
    assert f"({signed(whole[0])} with gte-small and {signed(whole[1])} with all-MiniLM-L6-v2)" in sentence
    assert sentence.endswith(f"the control on all of it is {signed(control[0])} and {signed(control[1])} points.")


def test_heads_are_chosen_on_held_out_questions_and_scored_on_dev(answers: dict[str, str]) -> None:
    sentence = answers[QUESTIONS[4]].split("\n")[0]
    stages = {"0": "on untouched encoders", "0.3": "after 0.3 epochs", "1": "after 1 epoch", "2": "after 2 epochs"}
    for epochs, words in stages.items():
        along = "untouched_{}_kernels" if epochs == "0" else "squad2_{}_kernels"
        gains: dict[str, dict[str, float]] = {}
        for pattern in ("squad2_{}", along):
            runs = [Runs(pattern.format(short)) for short in ("gte", "minilm")]
            for head in (name for name in runs[0].models(epochs) if "separate" not in name):
                gains[head] = {
                    split: fmean(fmean(one.gaps(epochs, head, "last_linear", split=split)) for one in runs)
                    for split in ("dev", "held_out")
                }
        head = max(gains, key=lambda name: gains[name]["held_out"])
        unit = " points over the control on dev" if epochs == "0" else ""
        assert f"{head} {words} ({signed(gains[head]['dev'])}{unit})" in sentence


def test_verdicts_are_counted_from_the_table(answers: dict[str, str]) -> None:
    sentence, _, table, *_ = answers[QUESTIONS[5]].split("\n\n")
    verdicts = [line.split(" | ")[1] for line in table.split("\n")[2:]]
    assert len(verdicts) == 15
    singular = {"holds": "holds", "partly": "holds in part", "does not hold": "does not hold"}
    plural = {"holds": "hold", "partly": "hold in part", "does not hold": "do not hold"}
    for verdict in singular:
        count = verdicts.count(verdict)
        assert count and f" {count} {(singular if count == 1 else plural)[verdict]}" in sentence
    assert f"{verdicts.count('no clear difference')} shows no clear difference" in sentence
    unmeasured = answers[QUESTIONS[5]].partition("Not measured, and left out here: ")[2].partition(".</sub>")[0]
    assert len(unmeasured.split("; ")) == 5 and "Of the papers' 20 claims" in sentence
    assert "5 are not measured" in sentence and "not measured" not in verdicts


# ---------------------------------------------------------------------- other numbers, other sentences


def with_better_heads(points: float) -> Any:
    """The kept scores, with all heads but the control better by some points on dev."""
    experiments = {}
    for name, one in load_kept().items():
        runs: dict[int, Any] = deepcopy(one.runs)
        for run in runs.values():
            for model in (model for models in run["snapshots"].values() for model in models.values()):
                if model.get("head") not in (None, "last_linear"):
                    for key, score in model["scores"]["dev"].items():
                        if isinstance(score, float):
                            model["scores"]["dev"][key] = score + points
        experiments[name] = dataclasses.replace(one, runs=runs)
    return experiments


def test_sentences_follow_the_numbers() -> None:
    (sentence,) = what_heads_add(with_better_heads(5), {}).block.sentences
    assert sentence.startswith("A lot: ") and "by +4.88 to +5.82 points" in sentence and "on 9 of 9 tasks" in sentence
    (sentence,) = what_heads_add(with_better_heads(-1), {}).block.sentences
    assert sentence.startswith("Nothing: ") and "on 0 of 9 tasks" in sentence
    experiments = load_kept()
    lower = at_lower_rate(load_rates())
    (sentence,) = better_encoders(experiments, lower).block.sentences
    assert sentence.startswith("The better the encoder, the less ")
    # Heads that add 15 points at 2e-4 only, where encoders are better.
    (sentence,) = better_encoders(with_better_heads(15), lower).block.sentences
    assert not sentence.startswith("The better the encoder, the less ")


def test_amounts_are_named_by_size() -> None:
    named = [amount(points) for points in (-0.1, 0.0, 0.4, 1.0, 3.0)]
    assert named == ["Nothing", "Nothing", "Almost nothing", "A little", "A lot"]


def test_without_runs_there_are_no_answers() -> None:
    assert all_questions({}, {}) == []
