"""Share a kit: a folder with everything that it needs on another machine, to be pushed to the hub.

An encoder from the hub is named by its revision, the embedded one by its name. One from a local folder has no name that
others know, so its files travel along.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bertvision.disk import check_files, inside, mark_done, write_sealed, write_text, writing_folder
from bertvision.encoder.loading import EMBEDDED, affects_output, find_folder, split_revision, with_revision
from bertvision.errors import UserError
from bertvision.heads.base import CONFIG, WEIGHTS
from bertvision.hub import push
from bertvision.kinds import KINDS
from bertvision.kits.card import encoder_title
from bertvision.kits.folder import FILE, FORMAT, OWN_ENCODER
from bertvision.kits.kit import Kit
from bertvision.report.hub_card import SharedHead, Sharing, build_hub_card


def save_kit(kit: Kit, to: Path, name: str | None = None, sharing: Sharing | None = None) -> Path:
    """Write the kit, with the tasks that are loaded, to a new or empty folder."""
    refuse_taken(to)
    encoder = portable_name(kit.encoder_name)
    with writing_folder(to.resolve(), "the folder") as fresh:
        for task in kit.tasks:
            source, folder = inside(kit.folder, task), inside(fresh, task)
            folder.mkdir()
            check_files(source, WEIGHTS, CONFIG)
            for path in source.iterdir():
                if path.is_file():
                    shutil.copyfile(inside(source, path.name), folder / path.name)
        facts: dict[str, Any] = {
            "format": FORMAT,
            "name": kit.name,
            "encoder": encoder or encoder_title(kit.encoder_title),
        }
        if encoder is None:
            copy_encoder(kit.encoder_name, fresh / OWN_ENCODER)
            mark_done(fresh / OWN_ENCODER, kit.encoder_stamp)
            facts["own_encoder"] = True
        tasks = {task: own.facts for task, own in kit.tasks.items()}
        facts |= {"encoder_stamp": kit.encoder_stamp, "layers": kit.layers, "tasks": tasks}
        write_sealed(fresh / FILE, facts)
        card = build_hub_card(name or kit.name, _heads(kit), encoder or "", False, sharing or Sharing())
        write_text(fresh / "README.md", card)
    return to


def push_kit(kit: Kit, name: str, sharing: Sharing | None = None, **settings: Any) -> str:
    """Push the kit to the hub. Return the address of the commit. `settings` are those of `hub.push`."""
    with tempfile.TemporaryDirectory() as place:
        return push(save_kit(kit, Path(place) / "kit", name, sharing), name, **settings)


def _heads(kit: Kit) -> list[SharedHead]:
    return [
        SharedHead(
            task, KINDS[own.facts["task"]["kind"]], own.facts["task"]["metrics"], own.facts["pairs"],
            own.facts["head"], own.facts["parameters"], {**own.facts["scores"]},
        )
        for task, own in kit.tasks.items()
    ]  # fmt: skip


# ---------------------------------------------------------------------- also for single models


def refuse_taken(to: Path) -> None:
    """Refuse a folder that has something in it."""
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise UserError(f"'{to}' exists: choose a new or empty folder.")


def portable_name(encoder: str) -> str | None:
    """The name of an untouched encoder that means the same elsewhere; None for a local folder."""
    if encoder == EMBEDDED or (split_revision(encoder) and not os.path.isdir(encoder)):
        return encoder
    return with_revision(encoder) if find_folder(encoder) is None else None


def copy_encoder(name: str, to: Path) -> None:
    """Copy the files of an encoder's folder on which its output depends."""
    source = find_folder(name)
    assert source is not None, "encoders with a portable name are not copied"
    to.mkdir(exist_ok=True)
    for path in sorted(source.iterdir()):
        if affects_output(path):
            shutil.copyfile(path, to / path.name)
