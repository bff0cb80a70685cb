"""bertvision evaluate CONFIG|RUN [--kit NAME], or --predictions FILE --data FILE"""

from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli import AsJson, Overrides, Wait, app, load_job, print_json, print_run, print_table
from bertvision.errors import UserError
from bertvision.tables import Table


@app.command(
    "evaluate",
    rich_help_panel="Individual stages",
    epilog="Example: bertvision evaluate --predictions mine.json --data dev-v2.0.json --json",
)
def evaluate(
    config: Annotated[
        str | None, typer.Argument(help="A TOML config file or a run folder.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    predictions: Annotated[
        Path | None, typer.Option(help="SQuAD 2.0 predictions file to score: JSON, id → answer.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="With --predictions: SQuAD file with the gold answers.")] = None,
    kit: Annotated[str | None, typer.Option(help="Score this kit's head on the data of the config.")] = None,
    wait: Wait = False,
    json: AsJson = False,
) -> None:
    """Score all models of a run, a head of a kit, or a SQuAD 2.0 predictions file."""
    if predictions is not None or data is not None:
        if predictions is None or data is None or config is not None or kit is not None:
            raise UserError("to score a file, give both --predictions FILE and --data FILE, and no config or kit.")
        _evaluate_file(predictions, data, json)
        return
    if config is None:
        raise UserError("give a config or run folder, or --predictions FILE --data FILE.")
    job = load_job(config, overrides, wait=wait)
    if kit is not None:
        _evaluate_kit(kit, job, json)
        return
    from bertvision.pipeline.run import score_job

    print_run(job, score_job(job), json)


def _evaluate_kit(name: str, job: Any, as_json: bool) -> None:
    from bertvision.kits.folder import find_kit
    from bertvision.kits.kit import Kit
    from bertvision.kits.scoring import kit_table, score_kit

    settings = job.config.encoder
    kit = Kit(find_kit(name), device=settings.device, dtype=settings.dtype, reporter=job.reporter)
    scores = score_kit(kit, job)
    print_json(scores) if as_json else print_table(kit_table(kit, scores))


def _evaluate_file(predictions: Path, data: Path, as_json: bool) -> None:
    from bertvision.evaluation.spans.official import score_answers
    from bertvision.kinds.span import gold_answers
    from bertvision.tasks.squad import read_squad
    from bertvision.tasks.text_files import read_json

    answers = read_json(predictions)
    if not isinstance(answers, dict) or not all(isinstance(text, str) for text in answers.values()):
        raise UserError(f'{predictions}: expected one JSON object, question id → answer text ("" = no answer).')
    examples = read_squad(data)
    if any(example.answers is None for example in examples):
        raise UserError(f"{data} has questions without gold answers, so predictions can't be scored on it.")
    scores = score_answers(gold_answers(examples), answers)
    if as_json:
        print_json(scores)
    else:
        rows = [[key, str(value) if isinstance(value, int) else f"{value:.4f}"] for key, value in scores.items()]
        print_table(Table(["metric", "score"], rows, f"{predictions} on {data}"))
