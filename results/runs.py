"""The page's part on the runs themselves: what was run, and what is wanted and not there."""

from bertvision.analysis.block import Block, Cell, Column, Frame
from bertvision.stages import ENCODER
from results.kept import Experiment
from results.names import SHARED_GPU
from results.sentences import GLUE

WANTED = [
    ("spans", 3, ["squad2_gte", "squad2_minilm"]),
    ("every head for spans", 1, ["squad2_gte_zoo", "squad2_minilm_zoo"]),
    ("full fine-tuning with decay to 1 epoch", 3, ["squad2_gte_full1", "squad2_minilm_full1"]),
    ("full fine-tuning with decay to 2 epochs", 3, ["squad2_gte_full2", "squad2_minilm_full2"]),
    ("LoRA", 3, ["squad2_gte_lora", "squad2_minilm_lora"]),
    ("BitFit", 3, ["squad2_gte_bitfit", "squad2_minilm_bitfit"]),
    ("no fine-tuning", 3, ["untouched_gte", "untouched_minilm"]),
    ("answerability", 3, ["answerable_gte", "answerable_minilm"]),
    *[(title, 5, [name]) for name, title in GLUE.items()],
]
"""What is wanted, with how many seeds, of which configs."""


def tell_missing(seeds: dict[str, list[int]]) -> list[str]:
    """What is wanted and not there, in a paragraph; nothing where all is there."""
    none, few = [], []
    for what, wanted, configs in WANTED:
        there = {config: len(seeds.get(config, [])) for config in configs}
        missing = [config for config in configs if not there[config]]
        short = [f"{config} {there[config]} of {wanted}" for config in configs if 0 < there[config] < wanted]
        none += [f"{what} ({', '.join(missing)})"] if missing else []
        few += [f"{what} ({', '.join(short)})"] if short else []
    told = [f"Not run yet, and so not on this page: {'; '.join(none)}."] if none else []
    told += [f"Fewer seeds than wanted: {'; '.join(few)}."] if few else []
    return [" ".join(told)] if told else []


def runs_block(experiments: dict[str, Experiment]) -> Block:
    columns = [Column("config"), Column("seeds"), Column("device"), Column("torch"), Column("fine-tuning, s", 0)]
    columns += [Column("passes of the heads, s", 0)]
    rows: list[list[Cell]] = []
    for name, one in sorted(experiments.items()):
        passes = sum(_passes(one, epochs) for epochs in one.head_snapshots)
        seeds = ", ".join(str(seed) for seed in one.seeds)
        made = one.first["device"], one.first["packages"]["torch"]
        rows.append([f"{name}.toml", seeds, *made, one.seconds(one.snapshots[-1], ENCODER), passes])
    note = (
        f"Seconds of the fastest seed: {SHARED_GPU}; squad2_minilm, seed 0, alone had it to itself. Tokenizing, "
        "scoring and writing come on top."
    )
    return Block("runs", "What was run", frame=Frame(columns, rows), note=note)


def _passes(experiment: Experiment, epochs: float) -> float:
    """Seconds of a snapshot's passes; all heads of one share them, and those that read every token have their own."""
    tuned = experiment.seconds(epochs, ENCODER) or 0.0
    models = [name for name in experiment.models(epochs) if "head" in experiment.facts(epochs, name)]
    return sum({round((experiment.seconds(epochs, name) or 0.0) - tuned, 3) for name in models})
