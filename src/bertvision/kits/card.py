"""The model card of a kit's head: README.md in its folder, plain Markdown without any local paths."""

import os
from pathlib import Path
from typing import Any

from bertvision import __version__
from bertvision.disk.forms import Figures
from bertvision.encoder.loading import EMBEDDED
from bertvision.kinds import KINDS, Kind
from bertvision.kits.kit import KitTaskFile
from bertvision.pipeline.finished import read_figure, total_of
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.score import columns_of, figure, score_figures
from bertvision.report.cards import describe_head, join_card, usage
from bertvision.tables import Table, to_markdown

CONTROL_NOTE = (
    "The control is a linear layer on the encoder's last layer (its [CLS] state, for labels and scores), trained like "
    "the head."
)

MUCH = 2.0  # percentage points below the held-out score: the card warns


def build_card(kit: dict[str, Any], facts: KitTaskFile, about: str | None = None, note: str = "") -> str:
    """Write the card of one head. `kit` and `facts` are as in kit.json; `about` describes the data and their licence,
    `note` the choice of the head."""
    return join_card(
        f"# {facts['head']} for {facts['task']['name']}",
        _what(kit, facts),
        note,
        f"## Data\n\n{about}" if about else "",
        _use(kit, facts),
        _scores(facts),
        _warning(facts),
        _trust(facts),
        _limits(facts),
    )


def _what(kit: dict[str, Any], facts: KitTaskFile) -> str:
    layers = "" if kit["layers"] is None else f"layers {', '.join(map(str, kit['layers']))} of "
    encoder = f"{layers}{encoder_title(kit['encoder'])}"
    return (
        f"{describe_head(facts['parameters'], facts['share'], 'hidden states', encoder)} not fine-tuned. It is part of "
        f"the kit `{kit['name']}` and works only with this encoder. Made with BERTVision {__version__}."
    )


def encoder_title(name: str) -> str:
    """Return the encoder's name for display; for a folder, only the last part of its path."""
    if name == EMBEDDED:
        return "the embedded encoder (all-MiniLM-L6-v2)"
    folder = Path(os.path.expanduser(name))
    return folder.name if folder.is_absolute() or folder.is_dir() else name


def _use(kit: dict[str, Any], facts: KitTaskFile) -> str:
    name, task = kit["name"], facts["task"]["name"]
    texts = ["A fine film."]
    if facts["pairs"]:
        texts = ["Who wrote it?", "Ada wrote it."] if facts["task"]["windowed"] else ["A text.", "A second one."]
    quoted = [f'"{text}"' for text in texts]
    given = f"({', '.join(quoted)})" if facts["pairs"] else quoted[0]
    options = " ".join(f"{option} {text}" for option, text in zip(("--text", "--text-pair"), quoted, strict=False))
    python = [f'kit = bv.load("{name}", tasks=["{task}"])', f"kit.predict([{given}])"]
    return usage(python, f"```\nbertvision predict {name} --tasks {task} {options}\n```")


def _scores(facts: KitTaskFile) -> str:
    kind = _kind_of(facts)
    columns = score_figures(kind, facts["task"]["metrics"], list(facts["scores"].values()))
    models = {"this head": facts["scores"]} | facts.get("beside", {})
    rows = [
        [split, model, f"{total_of(scores[split]):,}", *(figure(scores[split], one.key) for one in columns)]
        for split in facts["scores"]
        for model, scores in models.items()
        if split in scores
    ]
    notes = [f"One run, seed {facts['seed']}.", kind.baseline_note]
    notes += [CONTROL_NOTE] if "control" in facts.get("beside", {}) else []
    if kind.has_threshold:
        notes.append(f"The no-answer threshold is {facts['threshold']:.4g}.")
    return to_markdown(Table(["split", "model", "examples", *columns_of(columns)], rows, "Scores", " ".join(notes)))


def _warning(facts: KitTaskFile) -> str:
    """Name the metrics in which the head does not beat the baseline."""
    poor = [
        f"{_kind_of(facts).title(metric) or metric} on {split}"
        for split, baseline in facts.get("beside", {}).get("baseline", {}).items()
        for metric in facts["task"]["metrics"]
        if _score(facts["scores"].get(split, {}), metric) <= _score(baseline, metric)
    ]
    return f"**No better than the baseline in {', '.join(poor)}: do not rely on this head.**" if poor else ""


def _trust(facts: KitTaskFile) -> str:
    trust, title = facts["trust"], "How much to trust it"
    first: dict[str, float] = next((groups[0] for groups in trust.values()), {})
    if "off_by" in first:  # scores, which are not right or wrong
        rows = [[f"{first['examples']:,}", f"{first['off_by']:.2f}"]]
        return to_markdown(Table(["held-out examples", "mean absolute error"], rows, title))
    rows = []
    for predicted in dict.fromkeys([*facts["task"]["labels"], *trust]):
        cell = predicted.replace("|", "\\|")
        rows += [
            [cell, f"{group['from']:.3f}", f"{group['examples']:,}", f"{100 * group['right']:.0f}"]
            for group in trust.get(predicted, [])
        ] or [[cell, "", "0", "never predicted"]]
    columns = ["prediction", "confidence from", "held-out examples", "right, %"]
    note = f"Each row is a group of held-out examples with similar confidence. {_kind_of(facts).sureness_note}"
    return to_markdown(Table(columns, rows, title, note))


def _score(scores: Figures, metric: str) -> float:
    return read_figure(scores, metric) or 0.0


def _kind_of(facts: KitTaskFile) -> Kind:
    return KINDS[facts["task"]["kind"]]


def _limits(facts: KitTaskFile) -> str:
    chosen = "head and threshold were" if _kind_of(facts).has_threshold else "head was"
    return (
        "## Limits\n\nThe head was scored on other examples from the dataset it was trained on. The scores say little "
        f"about other text. The {chosen} chosen on the held-out examples, so the held-out scores and the trust table "
        f"are slightly optimistic.{_too_sure(facts)}"
    )


def _too_sure(facts: KitTaskFile) -> str:
    """Warn if dev scores are far below held-out scores: trust is measured on held-out data and is then too high."""
    metric, held_out = facts["task"]["metrics"][0], facts["scores"][HELD_OUT]
    lower = [
        f"{_score(scores, metric):.1f} on {split}"
        for split, scores in facts["scores"].items()
        if _score(scores, metric) < _score(held_out, metric) - MUCH
    ]
    if not lower:
        return ""
    title = _kind_of(facts).title(metric) or metric
    shown = (
        f"{title[:1].upper()}{title[1:]} is {_score(held_out, metric):.1f} on held-out examples but {', '.join(lower)}"
    )
    return f" **{shown}: trust its predictions less than the table suggests.**"
