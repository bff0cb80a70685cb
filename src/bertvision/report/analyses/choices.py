"""The choices of a run and the data they were made on."""

from bertvision.heads import HEADS
from bertvision.pipeline.finished import FinishedRun, total_of
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.tables import Table, counted


@analysis("Scores", 50, "Choices and the data they were made on")
def choices(run: FinishedRun, split: str) -> Block:
    held = run.has_held_out
    total = total_of(run.encoder(run.last).models[0].scores(HELD_OUT)) if held else None
    data = f"held-out training data ({counted(total, 'example')})" if total else "the reported dev split"
    best, used = run.best_head(run.last), run.best_model(run.last)
    ensembles = run.groups(run.last, "ensemble")
    searched = (run.folder.path / "search").is_dir()
    rows = []
    if run.kind.has_threshold:
        rows.append(["no-answer threshold of each model", data if held else "not chosen, 0 is used"])
    if best:
        rows.append([f"best head ({best.name})", data])
    if used:
        rows.append([f"model that predict uses by default ({used.title})", data])
    if ensembles:
        rows.append(["ensemble in the summary, and the better of its members", data])
    if any(group.first.best_of for group in ensembles):
        rows.append(["members of averages of the best heads", data])
    if any(group.is_fitted for group in ensembles):
        rows.append(["weights of fitted ensembles", data])
    if run.chosen is not None:
        rows.append(["regularisation strengths, layers and recipes", data])
    else:
        heads = {model.head for model in run.models(run.last)}
        if any(HEADS[name].convex for name in HEADS if name in heads):
            rows.append(["penalties of convex heads", data if held else "not chosen, a fixed one is used"])
        how = f"search on {data}" if searched else "set in the config or by the task's recipe"
        rows.append(["learning rates, epochs and sizes of heads", how])
    clean = (
        "No choice was made on the examples reported here. Sentences that name the highest score on them only describe "
        "the results."
    )
    biased = (
        "No training data was held out. The best head was chosen on the reported examples, so its scores are "
        "optimistic."
    )
    same = (
        "The model and its settings were chosen on the examples reported here, so its scores are slightly optimistic. "
        "Fit with a dev set for scores on other rows."
    )
    said = biased if not held else same if split == HELD_OUT else clean
    return Block("choices", sentences=[said], table=Table(["choice", "made on"], rows))
