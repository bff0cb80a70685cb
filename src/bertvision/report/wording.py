"""Wording that all analyses share: names of models and metrics in a sentence, differences, p values and spreads, and
notes on seeds and thresholds."""

import re
from collections.abc import Iterable, Sequence

from bertvision.data.examples import Example
from bertvision.evaluation.statistics import spread
from bertvision.kinds import metric_title
from bertvision.pipeline.finished import FinishedRun, Group, Model
from bertvision.tables import MINUS, Cell, counted

ENCODER = "encoder alone"
CHOSEN = "at_threshold."
IN_WORDS = {
    "exact": "exact match",
    "f1": "F1",
    "matthews": "the Matthews correlation (× 100)",
    "pearson": "the Pearson correlation (× 100)",
    "spearman": "the Spearman correlation (× 100)",
}
"""Correlations are not percentages, although tables show them times 100, as is usual."""
HYPHEN_MINUS = re.compile(r"(?<![\w\-./])-(?=\d)")


# ---------------------------------------------------------------------- names


def title_of(group: Group) -> str:
    """A model in tables and pictures, without its seeds."""
    return Group(group.models[:1]).title


def in_text(group: Group) -> str:
    """A model inside a sentence, without its seeds."""
    named = {"encoder": f"the {ENCODER}", "control": f"the control ({group.name})"}
    return named.get(group.role, group.name)


def figure_name(key: str) -> str:
    """The name of a metric."""
    bare = key.removeprefix(CHOSEN)
    name = metric_title(bare)
    return name if bare == key else f"{name} at the chosen threshold"


def name_at_zero(key: str) -> str:
    """The name of a metric beside the same one at the chosen threshold."""
    return f"{figure_name(key)} at threshold 0"


def main_name(run: FinishedRun) -> str:
    """The main metric, without its threshold."""
    return figure_name(run.main.removeprefix(CHOSEN))


def metric_in_words(run: FinishedRun) -> str:
    """The main metric for readers who do not work with it: exact match, accuracy, the Pearson correlation."""
    return IN_WORDS.get(run.main.removeprefix(CHOSEN), main_name(run))


def with_article(name: str) -> str:
    """an accuracy; an F1; a Pearson correlation."""
    bare = name.removeprefix("the ")
    return f"{'an' if bare.startswith(('F', *'aeiou')) else 'a'} {bare}"


def gold_of(run: FinishedRun, example: Example) -> Cell:
    """The gold answers, label or score of an example."""
    return run.kind.show_gold(example, run.task.labels)


# ---------------------------------------------------------------------- sentences


def opening(text: str) -> str:
    """The text with a capital where a sentence begins; names of heads keep their spelling."""
    return (
        text[0].upper() + text[1:]
        if text.startswith(("the ", "of ", "after ", "without ", "always ", "all ", "there "))
        else text
    )


def listed(words: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def joined(*parts: str) -> str:
    """The sentences that are not empty, separated by spaces."""
    return " ".join(part for part in parts if part)


def tuned(epochs: float) -> str:
    """fine-tuned for 1 epoch; not fine-tuned."""
    return f"fine-tuned for {counted(epochs, 'epoch')}" if epochs else "not fine-tuned"


def after_tuning(epochs: float) -> str:
    """after 1 epoch of fine-tuning; without fine-tuning."""
    return f"after {counted(epochs, 'epoch')} of fine-tuning" if epochs else "without fine-tuning"


# ---------------------------------------------------------------------- numbers


def typeset(text: str) -> str:
    """A true minus sign before numbers, as in tables; hyphens inside words and ids stay."""
    return HYPHEN_MINUS.sub(MINUS, text)


def show_score(score: float) -> str:
    """52.0 %; −3.1 %. Scores are in percent already."""
    return f"{round(score, 1) + 0.0:.1f} %".replace("-", MINUS)  # + 0.0: no minus before nothing


def show_main(run: FinishedRun, score: float) -> str:
    """A score of the main metric: 52.0 %; 52.0 for a correlation."""
    is_correlation = "correlation" in metric_in_words(run)
    return show_score(score).removesuffix(" %") if is_correlation else show_score(score)


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
    """A fraction as 30 %; 2.5 %."""
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
    return "With several seeds, values are means over the seeds; ±: standard deviation." if several else ""


def stand_in_note(groups: Iterable[Group]) -> str:
    """For models that stand for their seeds."""
    several = [group for group in groups if len(group.models) > 1]
    if len(several) > 2:
        return "For heads with several seeds, the first seed that finished training is shown."
    return " ".join(
        f"{group.name} has {len(group.models)} seeds; the first that finished training is shown: "
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


def spell_time(seconds: float) -> str:
    """4.5 s, 45 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
