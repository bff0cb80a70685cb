"""The card of a model fitted to questions: README.md in its folder, without any local paths."""

from typing import Any

from bertvision import __version__
from bertvision.kits.card import encoder_title
from bertvision.models.card import describe_trust
from bertvision.models.spans.candidates import CONTINUED, KIT
from bertvision.models.spans.fit import SpanFit
from bertvision.report.cards import join_card, usage
from bertvision.tables import Table, counted, to_markdown

ORIGIN = {
    KIT: "It is the shipped span head, trained on SQuAD 2.0 (CC BY-SA 4.0).",
    CONTINUED: "It began as the shipped span head, trained on SQuAD 2.0 (CC BY-SA 4.0).",
}


def build_card(facts: dict[str, Any], fit: SpanFit) -> str:
    """`facts` are the contents of model.json."""
    name = f"models/{facts['model']}"
    return join_card(
        f"# {facts['model']}",
        _what(fit),
        usage(
            [f'model = bv.load("{name}")', 'model.predict([("A question?", "A passage.")])'],
            f'```\nbertvision predict {name} --text "A question?" --text-pair "A passage."\n```',
        ),
        _scores(fit),
        describe_trust(facts["trust"]),
        _limits(fit),
    )


def _what(fit: SpanFit) -> str:
    chosen = fit.chosen
    return (
        "Finds the answer to a question in a passage, or reports that there is none. The model is "
        f"`{chosen.name}`, {chosen.parameters:,} parameters on the hidden states of "
        f"{encoder_title(fit.options.encoder)}, which was not fine-tuned. {ORIGIN.get(chosen.name, '')} Fitted to "
        f"{counted(len(fit.questions), 'question')} with BERTVision {__version__}."
    ).replace("  ", " ")


def _scores(fit: SpanFit) -> str:
    table = fit.board.table()
    note = (
        f"{fit.board.why()} {fit.board.gain()} F1 and EM: at the no-answer threshold chosen on the same questions. "
        "The asterisk marks the chosen model."
    )
    return to_markdown(Table(table.columns, table.rows, "Scores", note))


def _limits(fit: SpanFit) -> str:
    return (
        "## Limits\n\nThe scores are for questions and passages like those it was fitted to and say little about "
        f"others. {counted(len(fit.trials), 'model')} and their no-answer thresholds were chosen on the same "
        f"{counted(fit.board.questions, 'question')}, so the scores are slightly optimistic."
    )
