"""bertvision encode CONFIG [section.key=value …] [--split NAME] [--part K/N | --cluster ADDRESS]"""

from typing import Annotated

import typer

from bertvision.cli import (
    PATIENCE,
    ClusterAddress,
    Config,
    CpusPerWorker,
    GpusPerWorker,
    Overrides,
    Patience,
    Wait,
    Workers,
    app,
    load_job,
    read_cluster,
)
from bertvision.errors import UserError, shorten, suggest
from bertvision.tables import counted


@app.command(
    "encode", rich_help_panel="Individual stages", epilog="Example: bertvision encode configs/rte.toml store.dtype=int8"
)
def encode(
    config: Config,
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="Split to encode: train, held_out or a dev split.")] = "train",
    part: Annotated[
        str, typer.Option(help="K/N: encode only part K of N, so that several commands can share the work.")
    ] = "1/1",
    wait: Wait = False,
    cluster: ClusterAddress = None,
    workers: Workers = None,
    cpus_per_worker: CpusPerWorker = None,
    gpus_per_worker: GpusPerWorker = None,
    patience: Patience = PATIENCE,
) -> None:
    """Write the hidden states that the heads read to a store. Fine-tunes the encoder first if needed.

    Existing shards are verified by their checksums; only missing or damaged ones are written.
    """
    number = _parse_part(part)
    chosen = read_cluster(cluster, workers, cpus_per_worker, gpus_per_worker, patience)
    if chosen is not None and number[1] > 1:
        raise UserError("--part and --cluster both share the work: give only one of them.")
    job = load_job(config, overrides, wait=wait or number[1] > 1)  # parts are often started together
    from bertvision.pipeline.finetune import finetune
    from bertvision.pipeline.run import open_run
    from bertvision.pipeline.states import UnfinishedError
    from bertvision.pipeline.states import encode as encode_states
    from bertvision.pipeline.train import check_heads

    known = ["train", *(job.scored_splits if split != "train" else [])]
    if split not in known:
        raise UserError(f"{job.task.name} has no split '{split}': {suggest(split, known)}")
    check_heads(job)
    with job.writing():  # several commands may write one store
        open_run(job)
        finetune(job)
    try:
        if chosen is not None:
            from bertvision.cluster.shards import encode as encode_on_cluster

            stores = encode_on_cluster(job, split, chosen)
        else:
            stores = encode_states(job, split, number)
    except UnfinishedError as unfinished:
        stores = []
        if job.machine.is_main:
            typer.echo(str(unfinished))
    for store in stores if job.machine.is_main else ():
        facts = store.manifest
        typer.echo(
            f"{store.location}: {counted(facts.windows, 'window')}, {counted(facts.tokens, 'token')}, "
            f"{facts.bytes / 1e6:,.1f} MB, {facts.contents.dtype}"
        )


def _parse_part(part: str) -> tuple[int, int]:
    number, _, parts = part.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and len(part) <= 18 and 1 <= int(number) <= int(parts)):
        raise UserError(f"--part is {shorten(part)}: expected K/N, such as 2/4 for the second of four parts.")
    return int(number) - 1, int(parts)
