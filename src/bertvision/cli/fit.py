"""bertvision fit FILE [--text COLUMN] [--label COLUMN] [--dev FILE] [--to FOLDER]"""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import MOST_MEGABYTES, AsJson, MostMegabytes, Wait, app, print_json, print_table, quiet_libraries
from bertvision.errors import UserError, shorten
from bertvision.progress import RichReporter
from bertvision.settings import MOST_SECONDS
from bertvision.tables import counted


@app.command(
    "fit",
    rich_help_panel="Main commands",
    epilog="Example: bertvision fit train.csv --text message --label intent --dev dev.csv --to models/intents",
)
def fit(
    train: Annotated[
        Path,
        typer.Argument(
            help="Labelled rows (CSV, TSV, JSONL, Parquet) or questions on passages (SQuAD JSON); .gz or .xz too.",
            show_default=False,
        ),
    ],
    text: Annotated[str | None, typer.Option(help="Column with the text. Default: guessed.")] = None,
    text_pair: Annotated[str | None, typer.Option(help="Column with the second text. Default: guessed.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label or score. Default: guessed.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column with the weight of each row.")] = None,
    kind: Annotated[str | None, typer.Option(help="Target: 'label', 'score' or 'span'. Default: guessed.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Rows or questions to score once, after the choice.")] = None,
    to: Annotated[Path | None, typer.Option(help="Folder for the model. Default: models/<file stem>.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing model in that folder.")] = False,
    skip_empty: Annotated[bool, typer.Option(help="Leave out rows with an empty text or label.")] = False,
    rows: Annotated[str, typer.Option(help="Sample a longer file to this many rows, or 'all'.")] = "100000",
    encoder: Annotated[str, typer.Option(help="Encoder: 'embedded', a hub name or a folder.")] = "embedded",
    heads: Annotated[str, typer.Option(help="Models to try: 'auto', or names separated by commas.")] = "auto",
    seconds: Annotated[float | None, typer.Option(help="Total time in seconds, about; --tune takes more.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric to choose by: accuracy, f1_macro, pearson or spearman.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="With few rows: also tune the encoder, by comparing your rows.")
    ] = False,
    balanced: Annotated[bool, typer.Option(help="Give rare labels the same total weight as common ones.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    most_megabytes: MostMegabytes = MOST_MEGABYTES,
    wait: Wait = False,
    json: AsJson = False,
) -> None:
    """Fit a model to your own texts, or to questions on passages.

    The encoder stays frozen, all its layers are read, and held-out rows choose the model.
    """
    most = _parse_rows(rows)
    if seconds is not None and not 0 < seconds <= MOST_SECONDS:
        raise UserError(f"--seconds must be above 0 and at most {MOST_SECONDS:g}, not {seconds:g}.")
    quiet_libraries()
    from bertvision.models.fit import Options
    from bertvision.models.own_data import fit_own_data
    from bertvision.models.save import find_suspects, summary
    from bertvision.models.spans.fit import SpanFit
    from bertvision.models.spans.save import summary as span_summary
    from bertvision.tasks.text_files import reading_up_to

    names = heads if heads == "auto" else [name.strip() for name in heads.split(",") if name.strip()]
    options = Options(encoder, names, seconds, seed, metric, "balanced" if balanced else None, tune=tune)
    columns = {"text": text, "text_pair": text_pair, "label": label, "weight": weight}
    with reading_up_to(most_megabytes):
        found, folder = fit_own_data(
            train, dev, to, options=options, columns=columns, kind=kind, overwrite=overwrite, skip_empty=skip_empty,
            rows=most, reporter=RichReporter(), wait=wait,
        )  # fmt: skip
    if isinstance(found, SpanFit):
        print_json({"model": str(folder), **span_summary(found)}) if json else _print_span_fit(found, folder)
        return
    if json:
        print_json({"model": str(folder), **summary(found)})
        return
    _print_fit(found, folder, find_suspects(found))


def _parse_rows(rows: str) -> int | None:
    if rows == "all":
        return None
    if not rows.isdecimal() or len(rows) > 18 or int(rows) < 2:
        raise UserError(f"--rows is {shorten(rows)}: give a whole number of at least 2, or 'all'.")
    return int(rows)


def _print_fit(fit: Any, folder: Path, suspects: list[Any]) -> None:
    board = fit.board
    table = board.table()
    encoded = f"encoded in {fit.encode_seconds:.1f} s, {fit.seconds:.1f} s in all"
    table.title = f"{folder.name}: {counted(len(fit.examples), 'row')}, {encoded}"
    table.note = f"Scores: {board.where}."
    _print_board(table, board)
    typer.echo(board.why())
    if board.gain():
        typer.echo(board.gain())
    if hint := fit.tuning_hint():
        typer.echo(hint)
    if suspects:
        typer.echo(f"{counted(len(suspects), 'row')} may be mislabelled ({folder / 'suspects.csv'}), for example:")
        for one in suspects[:3]:
            shown = " ".join(one.text.split())
            shown = f"{shown[:60]}…" if len(shown) > 60 else shown
            typer.echo(f"  {one.place}: '{shown}' is labelled {one.label}, predicted {one.predicted}")
    example = "--text … --text-pair …" if fit.task.takes_pairs else "--text …"
    typer.echo(f"model: {folder}   (to use it: bertvision predict {shlex.quote(str(folder))} {example})")


def _print_span_fit(fit: Any, folder: Path) -> None:
    board = fit.board
    table = board.table()
    encoded = f"encoded in {fit.encode_seconds:.1f} s, {fit.seconds:.1f} s in all"
    table.title = f"{folder.name}: {counted(len(fit.questions), 'question')}, {encoded}"
    table.note = f"Scores, in percent: {board.where}. F1 and EM: at the no-answer threshold chosen on these questions."
    _print_board(table, board)
    typer.echo(board.why())
    if board.gain():
        typer.echo(board.gain())
    use = f"bertvision predict {shlex.quote(str(folder))} --text QUESTION --text-pair PASSAGE"
    typer.echo(f"model: {folder}   (to use it: {use})")


def _print_board(table: Any, board: Any) -> None:
    """Print the leaderboard, and the notes below it if they do not fit into the table."""
    if "note" in print_table(table):
        for line in filter(lambda line: line.note, board.lines):
            typer.echo(f"  {line.name}: {line.note}")
