"""What was chosen on what."""

from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.tables import Table, counted


@analysis("Scores", 50, "What was chosen on what")
def choices(run: FinishedRun, split: str) -> Block:
    held = run.has_held_out
    total = run.encoder(run.last).models[0].scores(HELD_OUT).get("total") if held else None
    place = f"held-out part of train ({counted(int(total), 'example')})" if total else "the reported dev split itself"
    best, used = run.best_head(run.last), run.best_model(run.last)
    ensembles = run.groups(run.last, "ensemble")
    searched = (run.folder.path / "search").is_dir()
    rows = []
    if run.kind.has_threshold:
        rows.append(["no-answer threshold of each model", place if held else "not chosen: 0"])
    if best:
        rows.append([f"the head that this report calls best ({best.name})", place])
    if used:
        rows.append([f"the model that predict uses ({used.title})", place])
    if ensembles:
        rows.append(["the ensemble that the summary speaks of, and the better of its members", place])
    if any(group.is_fitted for group in ensembles):
        rows.append(["weights of fitted ensembles", place])
    rows.append(["learning rates, epochs and sizes of heads", f"by search on the {place}" if searched else "given"])
    nothing = (
        "Nothing was chosen on the examples reported here; where a sentence names the highest score on them, that is "
        "description."
    )
    flattered = "No part of train was held out: the best head was found on the reported examples, which flatters it."
    return Block("choices", sentences=[nothing if held else flattered], table=Table(["choice", "made on"], rows))
