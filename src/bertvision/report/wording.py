"""The words and small numbers that all analyses share: how models and figures are named in a sentence, how differences,
chances and spreads are told, and what is noted about seeds and thresholds."""

from collections.abc import Iterable, Sequence

from bertvision.data.examples import Example
from bertvision.evaluation.statistics import spread
from bertvision.kinds import metric_title
from bertvision.pipeline.finished import FinishedRun, Group, Model
from bertvision.tables import MINUS, Cell

ENCODER = "encoder alone"
CHOSEN = "at_threshold."


# ---------------------------------------------------------------------- names


def title_of(group: Group) -> str:
    """A model in tables and pictures, without its seeds."""
    return Group(group.models[:1]).title


def in_text(group: Group) -> str:
    """A model inside a sentence, without its seeds."""
    named = {"encoder": f"the {ENCODER}", "control": f"the control ({group.name})"}
    return named.get(group.role, group.name)


def figure_name(key: str) -> str:
    """A figure's name for people."""
    bare = key.removeprefix(CHOSEN)
    name = metric_title(bare)
    return name if bare == key else f"{name} at the chosen threshold"


def main_name(run: FinishedRun) -> str:
    """The main figure where a word must do."""
    return figure_name(run.main.removeprefix(CHOSEN))


def gold_of(run: FinishedRun, example: Example) -> Cell:
    """What is true of an example: its answers, its label's name or its score."""
    return run.kind.show_gold(example, run.task.labels)


# ---------------------------------------------------------------------- sentences


def opening(text: str) -> str:
    """The text as a sentence begins; names of heads stay as they are written."""
    return text[0].upper() + text[1:] if text.startswith(("the ", "of ")) else text


def listed(words: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def joined(*parts: str) -> str:
    """Those of some sentences that say anything, one after the other."""
    return " ".join(part for part in parts if part)


# ---------------------------------------------------------------------- numbers


def signed(value: float) -> str:
    """+3.21; −0.50; +0.00."""
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", MINUS)  # + 0.0: no minus before nothing


def apart(difference: float) -> str:
    """3.21 above; 0.50 below; level with."""
    shown = f"{abs(difference):.2f}"
    if float(shown) == 0:
        return "level with"
    return f"{shown} {'above' if difference > 0 else 'below'}"


def show_p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def by_chance(is_sure: bool) -> str:
    return "more than chance" if is_sure else "could be chance"


def percent(share: float) -> str:
    """30 %; 2.5 %."""
    return f"{100 * share:g} %"


def deviation_of(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds; one has none."""
    return spread(values).deviation if values else None


def with_spread(values: Sequence[float]) -> str:
    """62.00, or −62.00 ± 2.00 of several seeds."""
    found = spread(values)
    mean = f"{round(found.mean, 2) + 0.0:.2f}".replace("-", MINUS)  # + 0.0: no minus before nothing
    return mean if found.deviation is None else f"{mean} ± {found.deviation:.2f}"


# ---------------------------------------------------------------------- notes


def seeds_note(groups: Iterable[Group]) -> str:
    """For means over seeds."""
    several = any(len(group.trained) > 1 for group in groups)
    return "Of several seeds the mean is given; ±: standard deviation over the seeds." if several else ""


def stand_in_note(groups: Iterable[Group]) -> str:
    """For models that stand for their seeds."""
    several = [group for group in groups if len(group.models) > 1]
    if len(several) > 2:
        return "Of several seeds of a head the first that was trained to the end is shown."
    return " ".join(
        f"Of the {len(group.models)} seeds of {group.name} the first that was trained to the end is shown: "
        f"{group.trained[0].name}."
        for group in several
    )


def threshold_note(models: Sequence[Model]) -> str:
    """For answers, which depend on each model's threshold."""
    without = [model.name for model in models if model.threshold is None]
    if len(without) == len(models):
        return "At no-answer threshold 0: none was chosen on held-out training questions."
    exceptions = f" ({', '.join(without)}: at 0)" if without else ""
    return f"Each model at its own no-answer threshold, chosen on held-out training questions{exceptions}."
