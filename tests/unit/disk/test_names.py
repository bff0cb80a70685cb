"""Names from files stay names."""

from pathlib import Path

import pytest

from bertvision.disk import inside, plain_name, why_not_plain
from bertvision.errors import UserError

BAD = [
    "",
    ".",
    "..",
    "../a",
    "a/b",
    "/etc",
    "a\\b",
    "C:a",
    ".hidden",
    " a",
    "a ",
    "a\0b",
    "a\nb",
    "\ud800",
    "a" * 201,
    "é" * 101,
    1,
    None,
]


@pytest.mark.parametrize("name", BAD, ids=lambda name: repr(name)[:12])
def test_what_could_be_a_path_is_refused(name: object, tmp_path: Path) -> None:
    assert why_not_plain(name)
    with pytest.raises(UserError, match="can't be the name of a folder"):
        plain_name(name, "the task's name")
    with pytest.raises(UserError, match="can't be the name"):
        inside(tmp_path, "heads", name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["adapter_64", "epoch_0.3", "Größe", "模型", "a" * 200, "x-1_lr0.001"])
def test_plain_names_are_kept(name: str, tmp_path: Path) -> None:
    assert plain_name(name, "a name") == name and inside(tmp_path, "heads", name) == tmp_path / "heads" / name


def test_links_that_lead_out_are_refused_and_others_followed(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    (run / "real").mkdir(parents=True)
    other.mkdir()
    (run / "in").symlink_to(run / "real")
    (run / "out").symlink_to(other)
    assert inside(run, "in", "x") == run / "in" / "x"
    for names in (("out",), ("out", "x")):
        with pytest.raises(UserError, match="leads out of"):
            inside(run, *names)
    (tmp_path / "link").symlink_to(run)  # the folder itself may be a link
    assert inside(tmp_path / "link", "real") == tmp_path / "link" / "real"
