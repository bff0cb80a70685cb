import json
from pathlib import Path

import pytest

from bertvision.errors import UserError
from bertvision.kinds import LABEL, SCORE, SPAN
from bertvision.tasks import TASKS, TaskConfig, build_task
from bertvision.tasks.glue import GLUE
from bertvision.tasks.submission import write_submission

TINY = Path(__file__).parents[2] / "fixtures" / "glue_tiny"
# File name and first two labels in the form that the GLUE server accepts.
OFFICIAL = {
    ("cola", "test"): ("CoLA.tsv", ["0", "1"]),
    ("sst2", "test"): ("SST-2.tsv", ["0", "1"]),
    ("mrpc", "test"): ("MRPC.tsv", ["0", "1"]),
    ("stsb", "test"): ("STS-B.tsv", ["0.000", "1.000"]),
    ("qqp", "test"): ("QQP.tsv", ["0", "1"]),
    ("mnli", "test_matched"): ("MNLI-m.tsv", ["entailment", "neutral"]),
    ("mnli", "test_mismatched"): ("MNLI-mm.tsv", ["entailment", "neutral"]),
    ("mnli", "ax"): ("AX.tsv", ["entailment", "neutral"]),
    ("qnli", "test"): ("QNLI.tsv", ["entailment", "not_entailment"]),
    ("rte", "test"): ("RTE.tsv", ["entailment", "not_entailment"]),
    ("wnli", "test"): ("WNLI.tsv", ["0", "1"]),
}


@pytest.mark.parametrize("task, split", OFFICIAL)
def test_glue_predictions_have_the_official_format(task: str, split: str, tmp_path: Path) -> None:
    ids = [example.id for example in build_task(TaskConfig(task, data=str(TINY))).read(split)][:2]
    path = write_submission(task, split, GLUE[task].kind, ids, [0, 1], tmp_path / "new")
    name, labels = OFFICIAL[task, split]
    assert path == tmp_path / "new" / name
    assert path.read_bytes().decode() == f"index\tprediction\n0\t{labels[0]}\n1\t{labels[1]}\n"
    assert list(path.parent.iterdir()) == [path]


def test_every_glue_task_has_an_official_format() -> None:
    assert {task for task, _ in OFFICIAL} == set(GLUE) and len(OFFICIAL) == 11


def test_scores_are_clipped_and_have_three_decimals(tmp_path: Path) -> None:
    path = write_submission("stsb", "test", SCORE, ["test-0", "test-1", "test-2"], [-0.2, 2.34567, 7], tmp_path)
    assert path.read_text().splitlines()[1:] == ["0\t0.000", "1\t2.346", "2\t5.000"]


def test_squad_answers_map_ids_to_text(tmp_path: Path) -> None:
    path = write_submission("squad2", "test", SPAN, ["a", "b"], ["Zürich \u2028", ""], tmp_path)
    assert json.loads(path.read_text("utf-8")) == {"a": "Zürich \u2028", "b": ""}


@pytest.mark.parametrize(
    "task, split", [("rte", "dev"), ("mnli", "test"), ("squad2_answerable", "test"), ("files", "test")]
)
def test_splits_that_no_server_accepts_are_refused(task: str, split: str, tmp_path: Path) -> None:
    kind = TASKS[task].kind or LABEL
    with pytest.raises(UserError, match=f"no submission file for {task}, split '{split}'"):
        write_submission(task, split, kind, ["x"], [0], tmp_path)
