"""Scores against epochs of fine-tuning: the encoder alone as a line, heads as points."""

from bertvision.pipeline.finished import FinishedRun, Group
from bertvision.report.analysis import analysis, several_snapshots
from bertvision.report.block import Block
from bertvision.report.curves import EPOCHS, draw_scores, drawn_keys, score_cells, score_columns, score_rows
from bertvision.report.drawing import import_altair
from bertvision.report.ranking import SERIES, baseline_figure, judged_on, keys_at_zero, whole_heads
from bertvision.report.wording import ENCODER, apart, figure_name, in_text, joined, seeds_note, title_of
from bertvision.tables import Table, counted


@analysis("Training", 10, "Scores against epochs of fine-tuning", [several_snapshots])
def finetuning_curve(run: FinishedRun, split: str) -> Block:
    """Scores of the encoder alone and of the heads at each snapshot."""
    encoders = [run.encoder(epochs) for epochs in run.snapshots]
    baseline = baseline_figure(run, split, run.main)
    drawn = _drawn_heads(run)
    groups = [*encoders, *(group for epochs in run.head_snapshots for group in whole_heads(run, epochs))]
    shown = [*encoders, *(group for name in drawn for group in groups if group.name == name)]
    left = len({group.name for group in groups if group.role == "head"} - set(drawn))
    unseen = f"The picture leaves out {counted(left, 'head')} that scored lower on {judged_on(run)}." if left else ""
    table, of_picture = (
        Table(
            [EPOCHS, "model", *score_columns(run)],
            [[group.epochs, title_of(group), *score_cells(run, group, split)] for group in some],
        ).without_empty()
        for some in (sorted(groups, key=lambda group: group.epochs), shown)
    )
    return Block(
        sentences=[
            _describe_curve(run, split, encoders),
            *(_describe_head(run, split, at) for at in run.head_snapshots),
        ],
        table=table,
        picture=draw_scores(
            run,
            lambda key: score_rows(shown, split, key),
            import_altair().X("epochs:Q", title="epochs of fine-tuning"),
            "epochs:Q",
            lambda key: (baseline_figure(run, split, key), "baseline"),
            ENCODER,
        ),
        alt="" if baseline is None else f"Scores against epochs of fine-tuning; the baseline scores {baseline:.1f}",
        drawn=["epochs", *drawn_keys(run).values()],
        drawn_rows=of_picture,
        note=joined(
            "Heads and the control are shown at the snapshot they were trained on.", unseen, seeds_note(groups)
        ),
        folded=True,
    )


def _drawn_heads(run: FinishedRun) -> list[str]:
    """Names of the control and of the best heads on held-out data, at the last snapshot that has them."""
    names: list[str] = []
    control = run.control(run.last)
    for epochs in reversed(run.head_snapshots):
        heads = [group for group in whole_heads(run, epochs) if group.role == "head"]
        names += [group.name for group in run.ranked(heads) if group.name not in names]
    return [*([control.name] if control else []), *names[: SERIES - 2]]


def _describe_curve(run: FinishedRun, split: str, encoders: list[Group]) -> str:
    found = [(group.epochs, group.mean(split, run.main)) for group in encoders]
    known = [(epochs, value) for epochs, value in found if value is not None]
    (first, early), (last, late) = known[0], known[-1]
    best, high = max(known, key=lambda pair: pair[1])
    text = (
        f"The encoder alone scores {early:.2f} ({figure_name(run.main)}) after {counted(first, 'epoch')} of "
        f"fine-tuning and {late:.2f} after {counted(last, 'epoch')}"
    )
    text += f". Its highest score is {high:.2f}, after {counted(best, 'epoch')}." if high > late else "."
    zero = [encoders[at].mean(split, key) for key in keys_at_zero(run)[:1] for at in (0, -1)]
    at_zero = [f"{value:.2f}" for value in zero if value is not None]
    return f"{text} At threshold 0 it scores {' and '.join(at_zero)}." if len(at_zero) == 2 else text


def _describe_head(run: FinishedRun, split: str, epochs: float) -> str:
    """Compare the best head at a snapshot with the encoder alone, there and later."""
    heads = run.ranked(group for group in whole_heads(run, epochs) if group.role == "head")
    head = heads[0] if heads else run.control(epochs)
    value = head.mean(split, run.main) if head else None
    there = run.encoder(epochs).mean(split, run.main)
    if head is None or value is None or there is None:
        return f"No head has a score after {counted(epochs, 'epoch')} of fine-tuning."
    best = f" (best head on {judged_on(run)})" if heads else ""
    text = (
        f"After {counted(epochs, 'epoch')}, {in_text(head)}{best} scores {value:.2f}, {apart(value - there)} the "
        "encoder alone at the same snapshot"
    )
    later = [at for at in run.snapshots if at > epochs]
    if round(value - there, 2) <= 0 or not later:
        return f"{text}."
    for at in later:
        score = run.encoder(at).mean(split, run.main)
        if score is not None and score >= value:
            return f"{text}. The encoder alone first reaches this score after {counted(at, 'epoch')}."
    return f"{text}. The encoder alone does not reach this score at any later snapshot."
