"""What `fit` tries: a list for `heads="auto"`, or what the user names."""

from collections.abc import Sequence

from bertvision.encoder.reading import Reading
from bertvision.errors import UserError, suggest
from bertvision.heads import HEADS, find_preset, list_presets
from bertvision.kinds import Kind
from bertvision.models.candidates import (
    BestLayerCandidate,
    Candidate,
    LinearCandidate,
    Majority,
    PerceptronCandidate,
    TfidfCandidate,
)
from bertvision.models.stepped import SteppedCandidate

ALWAYS = ("majority", "last_lr")


def main_reading(ways: Sequence[Reading]) -> Reading:
    """How most candidates read the encoder: as it was made or, if it does not say, by the mean over tokens."""
    return ways[0] if len(ways) == 1 else "mean"


def auto_candidates(ways: Sequence[Reading]) -> list[Candidate]:
    """What `heads="auto"` tries, in this order, while there is time. `ways` are those in which the encoder is read."""
    read, others = main_reading(ways), [way for way in ways if way != main_reading(ways)]
    wide = "mean+deviation" if read == "mean" else read
    return [
        Majority(),
        LinearCandidate("last_lr", "last_lr", {"read": read}, role="encoder"),
        *(LinearCandidate(f"last_lr_{way}", "last_lr", {"read": way}) for way in others),
        TfidfCandidate(),
        BestLayerCandidate(read),
        PerceptronCandidate("mlp", {"read": wide}),
        SteppedCandidate("attentive", epochs=3, needs_memory=True),
        PerceptronCandidate("mlp_mean", {"read": "mean"}),
        LinearCandidate("linear", "linear", {"read": read}),
        *(LinearCandidate(f"linear_{way}", "linear", {"read": way}) for way in others),
        LinearCandidate("linear_deviation", "linear", {"read": "mean+deviation"}),
    ]


def pair_candidates(ways: Sequence[Reading]) -> list[Candidate]:
    """What `heads="auto"` tries for pairs of texts. Reading each text alone is usually better on an untouched encoder,
    so that comes first."""
    single = {candidate.name: candidate for candidate in auto_candidates(ways)}
    towers = {"read": main_reading(ways), "pairs": "towers"}
    return [
        single.pop("majority"),
        single.pop("last_lr"),
        LinearCandidate("last_lr_towers", "last_lr", towers),
        LinearCandidate("cosine_lr", "linear", {**towers, "compare": "cosine", "layer": -1}),
        LinearCandidate("linear_cosines", "linear", {**towers, "compare": "cosine"}),
        LinearCandidate("linear_towers", "linear", towers),
        PerceptronCandidate("mlp_towers", towers),
        BestLayerCandidate(towers["read"], "towers"),
        LinearCandidate("linear_towers_deviation", "linear", {"read": "mean+deviation", "pairs": "towers"}),
        *(candidate for name, candidate in single.items() if name != "best_layer_lr"),
    ]


def slow_candidates() -> list[Candidate]:
    """What `heads="auto"` tries after that, if the user gives it the time."""
    return [SteppedCandidate(name) for name in ("adapter_64", "ladder_64")]


def find_candidates(
    heads: str | Sequence[str], kind: Kind, seconds: float | None, ways: Sequence[Reading], pairs: bool = False
) -> list[Candidate]:
    """The candidates of "auto", or those that the user names, after the baseline and the last layer."""
    auto = pair_candidates(ways) if pairs else auto_candidates(ways)
    if heads == "auto":
        return auto + (slow_candidates() if seconds is not None else [])
    wanted = [heads] if isinstance(heads, str) else [str(name) for name in heads]
    known = {candidate.name: candidate for candidate in auto}
    if not wanted:
        raise UserError("heads is empty: name at least one, or use 'auto'.")
    if "auto" in wanted:
        raise UserError("heads: 'auto' stands alone. Use it without other names, or name every head.")
    return [
        known.get(name) or _from_the_zoo(name, kind, [*known], ways, pairs)
        for name in dict.fromkeys([*ALWAYS, *wanted])
    ]


def _from_the_zoo(name: str, kind: Kind, known: list[str], ways: Sequence[Reading], pairs: bool) -> Candidate:
    zoo = sorted({*HEADS, *list_presets()})
    if name not in zoo:
        raise UserError(f"heads has '{name}', which does not exist: {suggest(name, {'auto', *known, *zoo})}")
    head = HEADS[find_preset(name)[0]]
    if not head.takes(kind):
        raise UserError(f"heads has '{name}', which can't predict a {kind}: leave it out.")
    if find_preset(name)[1].get("pairs") == "towers" and not pairs:
        raise UserError(f"heads has '{name}', which compares the two texts of a pair, but the table has single texts.")
    if head.convex:
        return LinearCandidate(name, find_preset(name)[0], {"read": main_reading(ways), **find_preset(name)[1]})
    return SteppedCandidate(name)
