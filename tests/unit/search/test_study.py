import errno
import math
import os
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from bertvision.errors import UserError
from bertvision.search.space import Choices, Range, Space
from bertvision.search.study import Study, TriedMember

SPACE = Space(
    training={"lr": Range(1e-4, 1e-2, True, False)},
    heads={"adapter": {"size": Choices((4, 8, 16))}, "learned_pooling": {}},
)


def open_study(folder: Path, sampler: str = "random", seed: int = 0) -> Study:
    return Study(folder / "study.jsonl", "one", SPACE, sampler, seed)


def read_as_optuna(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))


def finish(study: Study, population: list[TriedMember]) -> None:
    """Use the head's size as its score: a sampler only needs scores that differ."""
    study.finish((one.number, "complete", float(one.entry.get("size", 0))) for one in population)


def entries(study: Study) -> list[dict[str, Any]]:
    return [one.entry for one in study.tried()]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_populations_depend_only_on_the_seed_and_earlier_members(sampler: str, tmp_path: Path) -> None:
    whole = open_study(tmp_path / "whole", sampler)
    for _ in range(4):
        finish(whole, whole.take_population(5))
    for _ in range(4):  # each population from a freshly opened study, as after a kill
        again = open_study(tmp_path / "parts", sampler)
        finish(again, again.take_population(5))
    assert len(entries(whole)) == 20
    assert entries(again) == entries(whole)
    assert len({str(entry) for entry in entries(whole)}) == 20
    other = open_study(tmp_path / "other", sampler, seed=1)
    finish(other, other.take_population(5))
    assert entries(other) != entries(whole)[:5]


def test_tpe_learns_and_random_does_not(tmp_path: Path) -> None:
    """The score falls with the distance of lr from 1e-3, so TPE's later proposals come closer."""
    distance = {}
    for sampler in ("random", "tpe"):
        study, far = open_study(tmp_path / sampler, sampler), []
        for _ in range(4):
            population = study.take_population(20)
            far = [abs(math.log10(one.entry["lr"]) + 3) for one in population]
            study.finish((one.number, "complete", -by) for one, by in zip(population, far, strict=True))
        distance[sampler] = sum(far) / len(far)
    assert distance["tpe"] < 0.7 * distance["random"]  # random draws give 0.5 on average


def test_a_kill_while_a_population_is_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = open_study(tmp_path / "whole")
    expected = [one.entry for one in whole.take_population(4)]
    monkeypatch.setattr(optuna.Study, "add_trials", lambda study, trials: [study.add_trial(t) for t in trials[:2]])
    open_study(tmp_path / "killed").take_population(4)
    monkeypatch.undo()
    again = open_study(tmp_path / "killed")
    assert [one.entry for one in again.take_population(9)] == expected, "the population keeps its original size"


def test_an_unfinished_population_is_returned_again_in_full(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    first = study.take_population(3)
    finish(study, first)
    second = study.take_population(3)
    study.report({second[0].number: (1, 10.0)})
    study.finish([(second[0].number, "dropped", math.nan)])
    again = open_study(tmp_path).take_population(3)
    assert [one.number for one in again] == [3, 4, 5]
    assert [one.state for one in again] == ["dropped", "running", "running"]


def test_states_and_scores_are_those_of_optuna(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    a, b, c, d = (one.number for one in study.take_population(4))
    study.report({a: (1, 10.0), b: (1, 20.0), c: (1, math.nan)})
    study.report({a: (1, 99.0), b: (2, 30.0)})  # after a kill, a rung is judged again, but the first score is kept
    study.finish([(a, "dropped", math.nan), (b, "complete", 40.0), (c, "failed", math.nan), (d, "complete", 5.0)])
    study.finish([(a, "dropped", math.nan), (b, "complete", 41.0)])  # reported already

    plain = optuna.load_study(study_name="one", storage=read_as_optuna(tmp_path / "study.jsonl"))

    assert [trial.state.name for trial in plain.trials] == ["PRUNED", "COMPLETE", "FAIL", "COMPLETE"]
    assert [trial.value for trial in plain.trials] == [10.0, 40.0, None, 5.0]
    assert plain.best_trial.number == b
    found = [(one.state, one.score, one.rung) for one in study.tried()]
    assert found == [("dropped", 10.0, 1), ("complete", 40.0, 2), ("failed", None, 1), ("complete", 5.0, 0)]


def test_studies_with_other_settings_stay_in_the_file(tmp_path: Path) -> None:
    one = open_study(tmp_path)
    finish(one, one.take_population(2))
    one.note("made_of", {"seed": 0})
    other = Study(tmp_path / "study.jsonl", "two", SPACE, "random", 1)
    assert other.tried() == [] and other.other_studies() == {"one": {"made_of": {"seed": 0}}}
    assert len(open_study(tmp_path).tried()) == 2


def test_a_last_line_that_a_kill_cut_off_is_done_again(tmp_path: Path) -> None:
    study, path = open_study(tmp_path), tmp_path / "study.jsonl"
    first = study.take_population(2)
    study.finish([(first[0].number, "complete", 4.0)])
    whole = path.read_bytes()
    study.finish([(first[1].number, "complete", 8.0)])
    longer = path.read_bytes()
    for length in range(len(whole) + 20, len(longer)):
        path.write_bytes(longer[:length])
        again = open_study(tmp_path)
        assert [one.state for one in again.tried()] == ["complete", "running"]
        assert path.read_bytes().startswith(whole)
    again.finish([(first[1].number, "complete", 8.0)])
    assert [one.score for one in open_study(tmp_path).tried()] == [4.0, 8.0]


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    study, path = open_study(tmp_path), tmp_path / "study.jsonl"
    finish(study, study.take_population(2))
    study.note("seconds", {"0/tokens": 1.5})
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 5):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(UserError, match="study.jsonl is damaged .* remove it: the search then starts over"):
            open_study(tmp_path).tried()


def test_studies_of_earlier_versions_are_taken_over(tmp_path: Path) -> None:
    storage = RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    old = open_study(tmp_path / "new")
    finish(old, old.take_population(3))
    old.note("made_of", {"seed": 0})
    optuna.copy_study(from_study_name="one", from_storage=old._storage, to_storage=storage)

    study = open_study(tmp_path)

    assert study.tried() == old.tried() and study.facts == {"made_of": {"seed": 0}}
    assert study.take_population(3) == old.take_population(3)
    assert (tmp_path / "study.db").exists(), "it is not ours to remove"


def test_a_damaged_study_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"SQLite format 3\0" + bytes(200))
    with pytest.raises(UserError, match="study.db is damaged"):
        open_study(tmp_path).tried()
    assert not (tmp_path / "study.jsonl").exists()


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = open_study(tmp_path)
    before = study.take_population(2)

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="no space left on the disk"):
        finish(study, before)
    monkeypatch.undo()
    again = open_study(tmp_path)
    finish(again, again.take_population(2))
    assert [one.state for one in open_study(tmp_path).tried()] == ["complete", "complete"]
