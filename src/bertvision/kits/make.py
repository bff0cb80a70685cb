"""Build a kit from finished runs on the same untouched encoder: from each, take the best head on held-out data."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.disk import (
    as_path,
    check_files,
    inside,
    lock_beside,
    mark_done,
    plain_name,
    read_stamp,
    sweep,
    write_sealed,
    write_text,
    writing_folder,
    writing_in,
)
from bertvision.encoder.loading import identify, resolve
from bertvision.errors import UserError
from bertvision.heads.base import CONFIG, WEIGHTS
from bertvision.kinds.base import results_file
from bertvision.kits.card import build_card
from bertvision.kits.folder import FILE, FORMAT
from bertvision.kits.kit import KitTaskFile
from bertvision.network import no_downloads
from bertvision.pipeline.finished import FinishedRun, Model
from bertvision.pipeline.folder import HELD_OUT, RunFolder, TaskFacts, describe_task
from bertvision.pipeline.job import read_reference
from bertvision.pipeline.stamps import EncoderStamp, HeadStamp
from bertvision.progress import Reporter
from bertvision.tasks.base import Task

UNTOUCHED = 0.0
"""The snapshot of the untouched encoder."""


@dataclass(frozen=True)
class KitEntry:
    """One task of a kit, taken from a run."""

    facts: KitTaskFile
    """The task's entry in kit.json."""
    head: Path
    """The head's folder."""
    encoder: str
    stamp: str
    """Fingerprint of the encoder that the head was trained on."""
    layers: tuple[int, ...] | None
    """The layers that the head reads; None: all."""
    note: str
    """A note for the card if the head is the control, else empty."""


@no_downloads()
def make_kit(
    runs: Sequence[Path],
    to: Path,
    heads: dict[str, str] | None = None,
    about: dict[str, str] | None = None,
    wait: bool = False,
    reporter: Reporter | None = None,
) -> Path:
    """Write a kit to `to`, replacing any kit that is there.

    `heads` maps tasks to head names (default: the best head on held-out data). `about` maps tasks to a text for the
    card, about the data and their licence. `wait`: if another process is writing to the folder, wait until it ends.
    """
    if not runs:
        raise UserError("a kit needs at least one run: give the run folders.")
    to = as_path(to, "the folder of the kit")
    with writing_in(lock_beside(to), wait, (reporter or Reporter()).say):
        return _make(runs, to, heads, about)


def _make(runs: Sequence[Path], to: Path, heads: dict[str, str] | None, about: dict[str, str] | None) -> Path:
    sweep(to.resolve().parent)
    _check_replaceable(to)
    _check_outlives(to, runs)
    entries = collect(runs, heads, about)
    encoder, stamp, layers = _find_encoder(entries)
    _check_outlives(to, [Path(resolve(encoder))])
    kit = {"name": to.resolve().name, "encoder": encoder, "encoder_stamp": stamp, "layers": layers}
    with writing_folder(to.resolve(), "--to") as fresh:
        for name, entry in entries.items():
            write_head(inside(fresh, name), entry, kit, (about or {}).get(name))
        tasks = {name: entry.facts for name, entry in entries.items()}
        write_sealed(fresh / FILE, {"format": FORMAT, **kit, "tasks": tasks})
    return to


def write_head(folder: Path, entry: KitEntry, kit: dict[str, Any], about: str | None) -> None:
    """Write the folder of one task: its head and its card."""
    folder.mkdir()
    check_files(entry.head, WEIGHTS, CONFIG)
    for file in (WEIGHTS, CONFIG):
        shutil.copyfile(entry.head / file, folder / file)
    mark_done(folder, entry.stamp)
    write_text(folder / "README.md", build_card(kit, entry.facts, about, entry.note))


def _check_replaceable(to: Path) -> None:
    """Refuse to replace anything but an empty folder or a kit."""
    if not to.exists() or (to / FILE).is_file() or (to.is_dir() and not any(to.iterdir())):
        return
    raise UserError(f"'{to}' exists and is not a kit: choose a new or empty folder, or a kit to replace.")


def _check_outlives(to: Path, sources: Iterable[Path]) -> None:
    """Refuse a target folder that contains a run or the encoder: replacing it would delete them."""
    for source in sources:
        if source.exists() and source.resolve().is_relative_to(to.resolve()):
            raise UserError(f"'{to}' is or contains '{source}', which the kit is built from: choose another folder.")


def _check_known(what: str, asked: Iterable[str], entries: Mapping[str, KitEntry]) -> None:
    for name in asked:
        if name not in entries:
            raise UserError(f"{what} for task '{name}', but no run is for that task: found {', '.join(entries)}.")


def collect(runs: Sequence[Path], heads: dict[str, str] | None, about: dict[str, str] | None) -> dict[str, KitEntry]:
    """The task of each run, with its head."""
    entries: dict[str, KitEntry] = {}
    for run in runs:
        entry = describe_run(FinishedRun(run), heads or {})
        name = entry.facts["task"]["name"]
        if name in entries:
            raise UserError(f"two runs are for task '{name}': a kit has one head per task. Leave one of them out.")
        entries[name] = entry
    _check_known("a head is given", heads or {}, entries)
    _check_known("a text for the card is given", about or {}, entries)
    return entries


def _find_encoder(entries: Mapping[str, KitEntry]) -> tuple[str, str, tuple[int, ...] | None]:
    """Return the name, fingerprint and layers of the encoder that all heads read."""
    encoders, read = {entry.encoder for entry in entries.values()}, {entry.layers for entry in entries.values()}
    if len(encoders) > 1:
        raise UserError(f"all runs of a kit must have the same encoder, found {', '.join(sorted(encoders))}.")
    if len(read) > 1:
        shown = "; ".join(f"{name}: {entry.layers or 'all'}" for name, entry in entries.items())
        raise UserError(
            f"all heads of a kit must read the same layers, found {shown}. Run again with the same encoder.layers."
        )
    (encoder,), (layers,) = encoders, read
    stamp = identify(encoder)
    if any(entry.stamp != stamp for entry in entries.values()):
        raise UserError(
            f"the encoder '{encoder}' is not the one the runs were made with: restore the original, or run again."
        )
    return encoder, stamp, layers


def describe_run(run: FinishedRun, heads: dict[str, str]) -> KitEntry:
    """Choose a run's head and collect what the kit stores about it and its task."""
    config, task, asked = run.settings, run.task, heads.get(run.task.name)
    plain_name(task.name, f"the task's name in {run.folder.file('task.json')}")
    head = _choose(run, asked)
    if not results_file(head.predictions(HELD_OUT)).is_file() or HELD_OUT not in head.figures:
        raise UserError(
            f"'{run.folder.path}' has no held-out examples: a kit needs them to choose a head and to measure trust. "
            "Set data.hold_out > 0 and run again."
        )
    threshold = float(head.threshold or 0.0)
    facts: KitTaskFile = {
        "task": _describe_task(task),
        "pairs": task.takes_pairs,
        "max_length": config.data.max_length or task.max_length,
        "overlap": config.data.overlap,
        "n_best": config.evaluate.n_best,
        "max_answer_tokens": config.evaluate.max_answer_tokens,
        "threshold": threshold,
        "head": head.name,
        "parameters": head.parameters,
        "share": head.share,
        "scores": {**head.figures},
        "seed": config.seed,
        "beside": _find_comparisons(run, head),
        "trust": task.kind.measure_trust(head.results(HELD_OUT), task.labels, threshold),
    }
    if config.data.hold_out is not None:
        facts["hold_out"] = config.data.hold_out
    stamp, layers = _read_stamps(run.folder, head.name)
    folder, note = run.folder.head(UNTOUCHED, head.name), _note(run, head, asked is not None)
    return KitEntry(facts, folder, config.encoder.name, stamp, layers, note)


def _describe_task(task: Task) -> TaskFacts:
    """Describe a task without the path of its data, and without `takes_pairs`, which kit.json stores as `pairs`."""
    found = describe_task(task)
    found["source"] = ""
    del found["takes_pairs"]
    return found


def _choose(run: FinishedRun, asked: str | None) -> Model:
    """Return the requested head, or the best among the run's control and heads."""
    chosen = None if run.chosen is None or run.last != UNTOUCHED else run.find(run.chosen, UNTOUCHED)
    if asked is None and chosen is not None and chosen.role == "peer":
        raise UserError(
            f"the model in '{run.folder.path}' is {chosen.name}, which reads no encoder, so it can't be part of a kit: "
            f"choose a head with --head {run.task.name}=NAME, or leave the model out."
        )
    if asked is None and run.chosen is not None and run.last != UNTOUCHED:
        heads = [group.name for group in run.groups(UNTOUCHED, "head")]
        saved = ", ".join(name for name in heads if run.folder.head(UNTOUCHED, name).is_dir())
        other = f", or choose a head on the untouched encoder with --head {run.task.name}=NAME ({saved})"
        raise UserError(
            f"'{run.folder.path}' has a tuned encoder; a kit needs the untouched one, which all its tasks share. Fit "
            f"without tuning{other if saved else ''}."
        )
    found = run.groups(UNTOUCHED, "control", "head")
    if not found:
        raise UserError(f"'{run.folder.path}' has no head on the untouched encoder: run it with train.snapshots = [0].")
    if asked is not None:
        return _saved(run, run.find(asked, UNTOUCHED, "control", "head"))
    if chosen is not None and chosen.role == "head":
        return chosen
    if run.chosen is not None:  # an average of heads, or the last layer: `fit` saves only the heads that it needs
        found = [group for group in found if run.folder.head(UNTOUCHED, group.first.name).is_dir()]
        if not found:
            raise UserError(f"'{run.folder.path}' has no saved head: fit again with --heads linear, for example.")
        return run.best_seed(run.best_of(found) or found[0])
    # If no head was trained on all of the data, take the best of those trained on a part of it.
    best = run.best(UNTOUCHED, "control", "head") or run.best_of(found) or found[0]
    return run.best_seed(best)


def _saved(run: FinishedRun, head: Model) -> Model:
    """The head, if its weights are in the folder. `fit` tries more heads than it saves."""
    if run.chosen is not None and not run.folder.head(UNTOUCHED, head.name).is_dir():
        raise UserError(
            f"'{run.folder.path}' has only the scores of {head.name}, not the model: fit again with --heads "
            f"{head.name}."
        )
    return head


def _note(run: FinishedRun, head: Model, asked: bool) -> str:
    """Return a note for the card that says that the head is the control; empty for any other head."""
    if head.role != "control":
        return ""
    note = "This head is the control: it reads only the last layer."
    if asked or run.best_head(UNTOUCHED) is None:
        return note
    return f"{note} No head that reads all layers is better on held-out data, so the other layers add nothing here."


def _find_comparisons(run: FinishedRun, head: Model) -> dict[str, dict[str, Any]]:
    """Return the scores of the baseline and the control, which the card shows next to the head's."""
    models = run.models(UNTOUCHED)
    found = {"baseline": next((model for model in models if model.role == "baseline"), None)}
    if head.role != "control":
        found["control"] = next((model for model in models if model.role == "control"), None)
    return {shown: {**model.figures} for shown, model in found.items() if model is not None}


def _read_stamps(run: RunFolder, name: str) -> tuple[str, tuple[int, ...] | None]:
    """Return the fingerprint of the encoder that a head was trained on, and the layers it reads."""
    encoder, reference = read_stamp(run.encoder(UNTOUCHED), EncoderStamp), read_reference(run.encoder(UNTOUCHED))
    head = read_stamp(run.head(UNTOUCHED, name), HeadStamp)
    if not (encoder and reference and head) or head.get("encoder", encoder["stamp"]) != encoder["stamp"]:
        raise UserError(
            f"head '{name}' in '{run.path}' was not trained on the encoder that is there now: {run.repair}."
        )
    layers = head.get("layers")
    return reference["stamp"], None if layers is None else tuple(layers)
