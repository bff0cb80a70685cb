"""Makes a kit of finished runs: of each the best head on held-out data, on the same encoder, which none of them
fine-tuned."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.disk import read_json, write_json, write_text, writing_folder
from bertvision.encoder.loading import identify, resolve
from bertvision.errors import UserError
from bertvision.heads.base import CONFIG, WEIGHTS
from bertvision.kinds.base import results_file
from bertvision.kits.card import build_card
from bertvision.kits.kit import FILE
from bertvision.pipeline.finished import FinishedRun, Model
from bertvision.pipeline.folder import HELD_OUT, RunFolder, describe_task
from bertvision.tasks.base import Task

UNTOUCHED = 0.0
"""The snapshot of an encoder that was not fine-tuned."""


@dataclass(frozen=True)
class KitEntry:
    """What a kit takes from a run."""

    facts: dict[str, Any]
    """As kit.json keeps it."""
    head: Path
    """The head's folder."""
    encoder: str
    stamp: str
    """Of the encoder that the head was trained on."""
    layers: tuple[int, ...] | None
    """Those that the head reads; None: all."""
    note: str
    """For the card, where the head is the control."""


def make_kit(
    runs: Sequence[Path], to: Path, heads: dict[str, str] | None = None, about: dict[str, str] | None = None
) -> Path:
    """Writes the kit, replacing one that is there. `heads` may name the head of a task, absent: the best on
    held-out data; `about` may have a sentence for a task's card, about its data and their licence."""
    if not runs:
        raise UserError("a kit is made of one run or more: give their folders.")
    _check_replaceable(to)
    _check_outlives(to, runs)
    entries = _collect(runs, heads or {})
    _check_known("a head is named for", heads or {}, entries)
    _check_known("something is said about", about or {}, entries)
    encoder, stamp, layers = _find_encoder(entries)
    _check_outlives(to, [Path(resolve(encoder))])
    kit = {"name": to.resolve().name, "encoder": encoder, "encoder_stamp": stamp, "layers": layers}
    with writing_folder(to.resolve()) as fresh:
        for name, entry in entries.items():
            (fresh / name).mkdir(parents=True)
            for file in (WEIGHTS, CONFIG):
                shutil.copyfile(entry.head / file, fresh / name / file)
            write_text(fresh / name / "README.md", build_card(kit, entry.facts, (about or {}).get(name), entry.note))
        write_json(fresh / FILE, {**kit, "tasks": {name: entry.facts for name, entry in entries.items()}})
    return to


def _check_replaceable(to: Path) -> None:
    """What is in the folder is replaced: only a kit may be."""
    if not to.exists() or (to / FILE).is_file() or (to.is_dir() and not any(to.iterdir())):
        return
    raise UserError(f"'{to}' is there and is no kit: give a folder that is new, empty or a kit, which is replaced.")


def _check_outlives(to: Path, sources: Iterable[Path]) -> None:
    """What a kit is made of must outlive its writing."""
    for source in sources:
        if source.exists() and source.resolve().is_relative_to(to.resolve()):
            raise UserError(f"'{to}' is or holds '{source}', which the kit is made of: give another folder.")


def _check_known(what: str, asked: Iterable[str], entries: Mapping[str, KitEntry]) -> None:
    for name in asked:
        if name not in entries:
            raise UserError(f"{what} task '{name}', of which there is no run: the runs are of {', '.join(entries)}.")


def _collect(runs: Sequence[Path], heads: dict[str, str]) -> dict[str, KitEntry]:
    entries: dict[str, KitEntry] = {}
    for run in runs:
        entry = describe_run(FinishedRun(run), heads)
        name = entry.facts["task"]["name"]
        if name in entries:
            raise UserError(f"two runs are of task '{name}': a kit has one head for each task.")
        entries[name] = entry
    return entries


def _find_encoder(entries: Mapping[str, KitEntry]) -> tuple[str, str, tuple[int, ...] | None]:
    """The name, stamp and layers of the encoder that all heads read."""
    encoders, read = {entry.encoder for entry in entries.values()}, {entry.layers for entry in entries.values()}
    if len(encoders) > 1:
        raise UserError(f"a kit has one encoder, and the runs have {', '.join(sorted(encoders))}.")
    if len(read) > 1:
        shown = "; ".join(f"{name}: {entry.layers or 'all'}" for name, entry in entries.items())
        raise UserError(
            f"heads of a kit read the same layers, and these do not ({shown}): run with the same encoder.layers."
        )
    (encoder,), (layers,) = encoders, read
    stamp = identify(encoder)
    if any(entry.stamp != stamp for entry in entries.values()):
        raise UserError(
            f"the encoder '{encoder}' is not the one this run was made with: bring that back, or run again."
        )
    return encoder, stamp, layers


def describe_run(run: FinishedRun, heads: dict[str, str]) -> KitEntry:
    """What a kit keeps of a run's task and head."""
    config, task, asked = run.config, run.task, heads.get(run.task.name)
    head = _choose(run, asked)
    if not results_file(head.predictions(HELD_OUT)).is_file() or HELD_OUT not in head.figures:
        raise UserError(
            f"'{run.folder.path}' has no held-out examples: a kit needs them to choose by and to say how far to trust "
            "an answer. Set data.hold_out > 0 and run again."
        )
    threshold = float(head.threshold or 0.0)
    facts = {
        "task": _describe_task(task),
        "pairs": task.takes_pairs,
        "max_length": config["data"]["max_length"] or task.max_length,
        "overlap": config["data"]["overlap"],
        "n_best": config["evaluate"]["n_best"],
        "max_answer_tokens": config["evaluate"]["max_answer_tokens"],
        "threshold": threshold,
        "head": head.name,
        "parameters": head.parameters,
        "share": head.share,
        "scores": head.figures,
        "seed": config["seed"],
        "hold_out": config["data"]["hold_out"],
        "beside": _find_comparisons(run, head),
        "trust": task.kind.measure_trust(head.results(HELD_OUT), task.labels, threshold),
    }
    stamp, layers = _read_stamps(run.folder, head.name)
    folder, note = run.folder.head(UNTOUCHED, head.name), _note(run, head, asked is not None)
    return KitEntry(facts, folder, str(config["encoder"]["name"]), stamp, layers, note)


def _describe_task(task: Task) -> dict[str, Any]:
    """Without where the data lay, which says nothing to others, and `takes_pairs`, which a kit keeps beside it."""
    found = {**describe_task(task), "source": ""}
    return {key: value for key, value in found.items() if key != "takes_pairs"}


def _choose(run: FinishedRun, asked: str | None) -> Model:
    """The head that was asked for, or the run's best of control and heads."""
    found = run.groups(UNTOUCHED, "control", "head")
    if not found:
        raise UserError(f"'{run.folder.path}' has no head on the untouched encoder: a kit needs train.snapshots = [0].")
    if asked is not None:
        return run.find(asked, UNTOUCHED, "control", "head")
    # Where none was trained on all of the data, those on a part of it are all there is.
    best = run.best(UNTOUCHED, "control", "head") or run.best_of(found) or found[0]
    return run.best_seed(best)


def _note(run: FinishedRun, head: Model, asked: bool) -> str:
    """The card of a control says that it is one."""
    if head.role != "control":
        return ""
    note = "This head is the control: it reads the last layer alone."
    if asked or run.best_head(UNTOUCHED) is None:
        return note
    return f"{note} On held-out data no head that reads all layers is better, so all layers add nothing here."


def _find_comparisons(run: FinishedRun, head: Model) -> dict[str, Any]:
    """The scores of the baseline and of the control, which a card shows beside the head's."""
    models = run.models(UNTOUCHED)
    found = {"baseline": next((model for model in models if model.role == "baseline"), None)}
    if head.role != "control":
        found["control"] = next((model for model in models if model.role == "control"), None)
    return {shown: model.figures for shown, model in found.items() if model is not None}


def _read_stamps(run: RunFolder, name: str) -> tuple[str, tuple[int, ...] | None]:
    """The stamp of the encoder that a head was trained on, and the layers that it reads."""
    encoder, reference = (read_json(run.encoder(UNTOUCHED) / f"{file}.json") for file in ("stamp", "reference"))
    head = read_json(run.head(UNTOUCHED, name) / "stamp.json")
    if None in (encoder, reference, head) or head.get("encoder", encoder["stamp"]) != encoder["stamp"]:
        raise UserError(
            f"head '{name}' in '{run.path}' was not trained on the encoder that is there now: "
            f"`bertvision run {run.path}` brings the run up to date."
        )
    layers = head.get("layers")
    return str(reference["stamp"]), None if layers is None else tuple(layers)
