"""The card of a fitted model: README.md in its folder, without any local paths."""

from typing import Any

from bertvision import __version__
from bertvision.kits.card import encoder_title
from bertvision.models.fit import Fit
from bertvision.models.folder import TUNED_LAST
from bertvision.report.cards import join_card, usage
from bertvision.tables import Column, Headings, Table, counted, to_markdown


def build_card(facts: dict[str, Any], fit: Fit) -> str:
    """`facts` are the contents of model.json."""
    return join_card(
        f"# {facts['model']}",
        _what(fit),
        _use(facts, fit),
        _scores(fit),
        describe_trust(facts["trust"]),
        _limits(fit),
    )


def _what(fit: Fit) -> str:
    chosen = fit.chosen
    predicts = f"one of {len(fit.task.labels)} labels" if fit.task.labels else "a score"
    if chosen.role == "peer":
        how = "TF-IDF of words and word pairs with logistic or ridge regression. It reads no encoder."
    else:
        encoder = encoder_title(fit.options.encoder)
        last = chosen.settings.get("head") == "last_lr" or chosen.name == TUNED_LAST
        layer = -1 if last else chosen.settings.get("layer")
        layers = {None: "the hidden states of every layer", -1: "the last layer"}.get(layer, f"layer {layer}")
        touched = "which was tuned on the same rows" if fit.is_tuned else "which was not fine-tuned"
        how = f"`{chosen.name}`, {chosen.parameters:,} parameters on {layers} of {encoder}, {touched}."
        if chosen.settings.get("pairs") == "towers":
            how += " It reads each text alone and compares the two."
    labels = f"\n\nLabels: {', '.join(fit.task.labels)}." if 0 < len(fit.task.labels) <= 100 else ""
    return (
        f"Predicts {predicts} for {'a pair of texts' if fit.task.takes_pairs else 'a text'}. The model is {how} "
        f"Fitted to {counted(len(fit.examples), 'row')} with BERTVision {__version__}.{labels}"
    )


def _use(facts: dict[str, Any], fit: Fit) -> str:
    given = '("A text.", "A second one.")' if fit.task.takes_pairs else '"A text."'
    more = ' --text-pair "A second one."' if fit.task.takes_pairs else ""
    name = f"models/{facts['model']}"
    return usage(
        [f'model = bv.load("{name}")', f"model.predict([{given}])"],
        f'```\nbertvision predict {name} --text "A text."{more}\n```',
    )


def _scores(fit: Fit) -> str:
    table = fit.board.table()
    note = f"{fit.board.why()} {fit.board.gain()} The asterisk marks the chosen model."
    return to_markdown(Table(table.columns, table.rows, "Scores", note))


def describe_trust(trust: dict[str, Any]) -> str:
    """The section on how often similar predictions were right."""
    title = "How much to trust it"
    first: dict[str, float] = next((groups[0] for groups in trust.values() if groups), {})
    if "off_by" in first:
        return to_markdown(
            Table(["held-out rows", Column("mean absolute error", 2)], [[first["examples"], first["off_by"]]], title)
        )
    rows = [
        [label.replace("|", "\\|"), group["from"], group["examples"], 100 * group["right"]]
        for label, groups in list(trust.items())[:30]
        for group in groups
    ]
    columns: Headings = ["prediction", Column("confidence from", 3), "held-out rows", Column("right, %", 0)]
    note = "Each row is a group of predictions with similar confidence, made without reading the row."
    if len(trust) > 30:
        note += f" The first 30 of {len(trust)} labels."
    return to_markdown(Table(columns, rows, title, note))


def _limits(fit: Fit) -> str:
    return (
        "## Limits\n\nThe scores are for texts like those of the training table and say little about others. "
        f"{counted(len(fit.trials), 'model')} were compared on the same {counted(fit.board.rows, 'row')}, so the score "
        "of the chosen one is slightly optimistic."
    )
