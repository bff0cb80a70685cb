"""The card of a kit's head: README.md in its folder, plain Markdown that names no place of a machine."""

from pathlib import Path
from typing import Any

from bertvision import __version__
from bertvision.encoder.loading import EMBEDDED
from bertvision.kinds import KINDS, Kind
from bertvision.pipeline.folder import HELD_OUT
from bertvision.pipeline.score import columns_of, figure, score_figures
from bertvision.report.cards import describe_head, join_card, usage
from bertvision.tables import Table, to_markdown

CONTROL_NOTE = "The control is a linear layer on the last layer ([CLS], for labels and scores), trained like the head."

MUCH = 2.0  # points


def build_card(kit: dict[str, Any], facts: dict[str, Any], about: str | None = None, note: str = "") -> str:
    """`kit` and `facts` as in kit.json; `about` is a sentence about the data and their licence, `note` one about the
    choice of the head."""
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


def _what(kit: dict[str, Any], facts: dict[str, Any]) -> str:
    layers = "" if kit["layers"] is None else f"layers {', '.join(map(str, kit['layers']))} of "
    encoder = f"{layers}{encoder_title(kit['encoder'])}"
    return (
        f"{describe_head(facts['parameters'], facts['share'], 'hidden states', encoder)} not fine-tuned. It belongs to "
        f"the kit {kit['name']} and needs that very encoder. Made with BERTVision {__version__}."
    )


def encoder_title(name: str) -> str:
    """The encoder's name for people; of a folder only the last part."""
    if name == EMBEDDED:
        return "the embedded encoder (all-MiniLM-L6-v2)"
    folder = Path(name).expanduser()
    return folder.name if folder.is_absolute() or folder.is_dir() else name


def _use(kit: dict[str, Any], facts: dict[str, Any]) -> str:
    name, task = kit["name"], facts["task"]["name"]
    texts = ["A fine film."]
    if facts["pairs"]:
        texts = ["Who wrote it?", "Ada wrote it."] if facts["task"]["windowed"] else ["A text.", "A second one."]
    quoted = [f'"{text}"' for text in texts]
    given = f"({', '.join(quoted)})" if facts["pairs"] else quoted[0]
    options = " ".join(f"{option} {text}" for option, text in zip(("--text", "--text-pair"), quoted, strict=False))
    python = [f'kit = bv.load("{name}", tasks=["{task}"])', f"kit.predict([{given}])"]
    return usage(python, f"```\nbertvision predict {name} --tasks {task} {options}\n```")


def _scores(facts: dict[str, Any]) -> str:
    kind = _kind_of(facts)
    columns = score_figures(kind, facts["task"]["metrics"], list(facts["scores"].values()))
    models = {"this head": facts["scores"]} | facts["beside"]
    rows = [
        [split, model, f"{scores[split]['total']:,}", *(figure(scores[split], one.key) for one in columns)]
        for split in facts["scores"]
        for model, scores in models.items()
        if split in scores
    ]
    notes = [f"One run, seed {facts['seed']}.", kind.baseline_note]
    notes += [CONTROL_NOTE] if "control" in facts["beside"] else []
    if kind.has_threshold:
        notes.append(f"The no-answer threshold is {facts['threshold']:.4g}.")
    return to_markdown(Table(["split", "model", "examples", *columns_of(columns)], rows, "Scores", " ".join(notes)))


def _warning(facts: dict[str, Any]) -> str:
    """Figures by which the head is not above the baseline."""
    poor = [
        f"{_kind_of(facts).title(metric) or metric} on {split}"
        for split, baseline in facts["beside"]["baseline"].items()
        for metric in facts["task"]["metrics"]
        if facts["scores"][split][metric] <= baseline[metric]
    ]
    return f"**No better than the baseline by {', '.join(poor)}: don't rely on this head.**" if poor else ""


def _trust(facts: dict[str, Any]) -> str:
    trust, title = facts["trust"], "How far to trust it"
    first: dict[str, float] = next((groups[0] for groups in trust.values()), {})
    if "off_by" in first:  # not right or wrong
        rows = [[f"{first['examples']:,}", f"{first['off_by']:.2f}"]]
        return to_markdown(Table(["held-out examples", "off by on average"], rows, title))
    rows = []
    for said in dict.fromkeys([*facts["task"]["labels"], *trust]):
        cell = said.replace("|", "\\|")
        rows += [
            [cell, f"{group['from']:.3f}", f"{group['examples']:,}", f"{100 * group['right']:.0f}"]
            for group in trust.get(said, [])
        ] or [[cell, "", "0", "never said"]]
    columns = ["said", "sureness from", "held-out examples", "right, %"]
    return to_markdown(Table(columns, rows, title, _kind_of(facts).sureness_note))


def _kind_of(facts: dict[str, Any]) -> Kind:
    return KINDS[facts["task"]["kind"]]


def _limits(facts: dict[str, Any]) -> str:
    chosen = "head and threshold were" if _kind_of(facts).has_threshold else "head was"
    return (
        "## Limits\n\nAll figures are of the same data as the examples that the head was trained on, and say little "
        f"of other text. The {chosen} chosen on the same held-out examples, so scores there and trust are a "
        f"little optimistic.{_too_sure(facts)}"
    )


def _too_sure(facts: dict[str, Any]) -> str:
    """Where dev is far below what was held out, trust, which is of the latter, promises too much."""
    metric, held_out = facts["task"]["metrics"][0], facts["scores"][HELD_OUT]
    lower = [
        f"{figures[metric]:.1f} on {split}"
        for split, figures in facts["scores"].items()
        if figures[metric] < held_out[metric] - MUCH
    ]
    if not lower:
        return ""
    title = _kind_of(facts).title(metric) or metric
    shown = f"{title} is {held_out[metric]:.1f} on held-out examples and {', '.join(lower)}"
    return f" **{shown}: trust answers less than the table says.**"
