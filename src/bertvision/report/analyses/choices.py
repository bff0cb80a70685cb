"""What was chosen on what."""

from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.block import Block, Cell, Column, Frame
from bertvision.words import counted


def choices(evidence: FinishedRun) -> Block:
    """What was chosen on what."""
    held = evidence.has_held_out
    total = evidence.encoder(evidence.last).models[0].scores(HELD_OUT).get("total") if held else None
    place = f"held-out part of train ({counted(int(total), 'example')})" if total else "the reported dev split itself"
    best, used = evidence.best_head(evidence.last), evidence.best_model(evidence.last)
    rows: list[list[Cell]] = []
    if evidence.kind.has_threshold:
        rows.append(["no-answer threshold of each model", place if held else "not chosen: 0"])
    rows += [[f"the head that this report calls best ({best.name})", place]] if best else []
    rows += [[f"the model that predict uses ({used.title})", place]] if used else []
    ensembles = evidence.groups(evidence.last, "ensemble")
    if ensembles:
        rows.append(["the ensemble that the summary speaks of, and the better of its members", place])
    if any(group.is_fitted for group in ensembles):
        rows.append(["weights of fitted ensembles", place])
    searched = (evidence.folder.path / "search").is_dir()
    rows.append(["learning rates, epochs and sizes of heads", f"by search on the {place}" if searched else "given"])
    sentences = [
        "Nothing was chosen on the examples reported here; where a sentence names the highest score on them, that is "
        "description."
        if held
        else "No part of train was held out: the best head was found on the reported examples, which flatters it."
    ]
    return Block("choices", "What was chosen on what", sentences, Frame([Column("choice"), Column("made on")], rows))
