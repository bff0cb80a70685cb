"""Layer maps as a report shows them: tokens across, layers up, and how strongly each hidden state pushes towards the
best head's prediction for an example (strengths.py computes it). The reader picks one of several examples."""

from typing import Any, TypedDict

import numpy as np

from bertvision.disk import DamagedError, as_form, fingerprint, write_sealed
from bertvision.errors import UserError
from bertvision.kinds import Kind
from bertvision.kinds.score import ScoreResults
from bertvision.kinds.span import SILENCE
from bertvision.pipeline.finished import FinishedRun
from bertvision.progress import Reporter
from bertvision.report.block import Block, Passage, Section, Shown, block_key
from bertvision.report.drawing import chart_of, import_altair, tips, two_sided
from bertvision.report.saved_heads import (
    ANALYSES,
    layers_of,
    predictions_stamp,
    read_known,
    saved_groups,
    the_layer,
    upper_half,
)
from bertvision.report.strengths import MAPS, LayerMap, SavedMap, compute_layer_maps, find_model
from bertvision.report.wording import listed
from bertvision.tables import Column, Rows, Table

VERSION = 2  # raise it when the same heads would give other maps
TITLE = "Layer map"
SHOWN = 60  # tokens in the picture: more would be too narrow to read
AROUND = 200  # characters of a passage shown on each side of the answers
LABEL = 70  # characters of an entry in the list of examples
EMPTY = "(empty text)"
GOLD, SAID = "gold answer", "prediction"
HEIGHT = 300  # pixels of the squares, so that the map of any encoder fits the first screen
Place = tuple[int, int]


def layer_map_section(run: FinishedRun, split: str, reporter: Reporter, with_encoder: bool = True) -> Section | None:
    """Maps of varied examples for the best head; None without saved heads, or where neither a cache nor the encoder
    is at hand."""
    if not run.kind.has_aim or not saved_groups(run):
        return None
    try:
        found = _cached_maps(run, split, reporter, with_encoder)
    except DamagedError:
        raise
    except UserError as error:
        # The data or the encoder may be gone: the rest of the report does not need them.
        reporter.say(f"“{TITLE}” is left out: {error}")
        return None
    blocks = [_build_block(one, run.kind, split, number) for number, one in enumerate(found, start=1)]
    ways = "the score up, orange down" if _is_score(run.kind) else "towards the prediction, orange against it"
    intro = f"Each square is one hidden state: tokens across, layers up. Blue pushed {ways}."
    return Section(TITLE, blocks, intro, is_picked=True) if blocks else None


class MapsFile(TypedDict):
    """analyses/layer_map_<split>.json."""

    stamp: str
    maps: list[SavedMap]


def _cached_maps(run: FinishedRun, split: str, reporter: Reporter, with_encoder: bool) -> list[LayerMap]:
    """The maps in analyses/layer_map_<split>.json, computed where they are missing or out of date."""
    path = run.folder.file(ANALYSES, f"layer_map_{split}.json")
    if not path.is_file() and not with_encoder:
        return []
    model = find_model(run, None)
    encoder = run.encoder(model.epochs).models[0]
    stamps = [predictions_stamp(one, split) for one in (model, encoder)]
    stamp = fingerprint("layer map", VERSION, stamps, model.name, layers_of(run, model))
    known = read_known(path, stamp, _read_maps, reporter)
    if known is not None:
        return known
    if not with_encoder:
        return []
    found = []
    with reporter.bar("layer maps", MAPS, "examples") as bar:
        for one in compute_layer_maps(run, split):
            found.append(one)
            bar.advance(1)
    write_sealed(path, {"stamp": stamp, "maps": [one.to_dict() for one in found]})
    return found


def _read_maps(value: Any) -> list[LayerMap]:
    return [LayerMap.from_dict(one) for one in as_form(value, MapsFile)["maps"]]


def _build_block(found: LayerMap, kind: Kind, split: str, number: int) -> Block:
    shown = choose_tokens(found)
    rows: Rows = [
        [place, token, *(float(value) for value in found.strength[:, place])]
        for place, token in enumerate(found.tokens)
    ]
    texts = found.texts[1:] if kind.reads_answers else found.texts
    return Block(
        block_key("layer_map", split, *([number] if number > 1 else [])),
        f"{TITLE}, example {number}",
        [_describe_example(found, kind)],
        Table(["position", "token", *(Column(name, 3) for name in found.layers)], rows),
        _draw(found, shown, kind),
        f"A map of {len(found.tokens)} tokens by {len(found.layers)} layers, the last layer on top: how strongly each "
        f"hidden state pushes {_towards(kind)}. {_describe_strongest(found, kind)}",
        _note(found, shown),
        folded=True,
        shown=Shown(_cut(found.texts[0], LABEL) or EMPTY, found.outcome, [excerpt(text, found) for text in texts]),
        after=_describe_strength(found, kind),
    )


def choose_tokens(found: LayerMap, most: int = SHOWN) -> list[int]:
    """The tokens to show: all, or the question and those around the answer (the strongest token without one)."""
    count = len(found.tokens)
    if count <= most:
        return list(range(count))
    front = min(found.front, most // 2)
    centre = sum(found.answer) // 2 if found.answer else int(np.abs(found.strength).sum(axis=0).argmax())
    room = most - front
    first = min(max(front, centre - room // 2), count - room)
    return [*range(front), *range(first, first + room)]


# ---------------------------------------------------------------------- the example


def _describe_example(found: LayerMap, kind: Kind) -> str:
    if kind.reads_answers:
        gold = (
            "The passage contains no answer" if found.gold == SILENCE else f"The right answer is {_quoted(found.gold)}"
        )
        start = f"Asked {_quoted(_cut(found.texts[0], 2 * AROUND))}, {found.head} {_answers(found.said)}."
        return f"{start} {gold}; the encoder alone {_answers(found.other)}."
    name, quote = ("gold score", str) if _is_score(kind) else ("right label", _quoted)
    return (
        f"{found.head} predicts {quote(found.said)}. The {name} is {quote(found.gold)}; the encoder alone predicts "
        f"{quote(found.other)}."
    )


def _answers(text: str) -> str:
    return "gives no answer" if text == SILENCE else f"answers {_quoted(text)}"


def _quoted(text: str) -> str:
    return f"“{text}”"


def _cut(text: str, most: int) -> str:
    """The beginning of a text, in whole words where it has any."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    return f"{line[: line.rfind(' ', 0, most) if ' ' in line[:most] else most]} …"


def excerpt(text: str, found: LayerMap) -> Passage:
    """The text around the predicted and the gold answer, with both marked; the beginning of a text without answers.
    Words are not cut."""
    places = [place for place in (found.place, found.gold_place) if place]
    if not places:
        return [(_cut(text, 2 * AROUND) or EMPTY, "")]
    low, high = min(low for low, _ in places), max(high for _, high in places)
    if high - low > 2 * AROUND:  # too far apart to show both
        low, high = places[0]
    first, last = _widen(text, low, high)
    edges = sorted({first, last, *(edge for place in places for edge in place if first < edge < last)})
    pieces = [(text[a:b], _role(a, found)) for a, b in zip(edges, edges[1:], strict=False)]
    return [("… ", "")] * (first > 0) + pieces + [(" …", "")] * (last < len(text))


def _widen(text: str, low: int, high: int) -> Place:
    """Characters around some others, to the next space."""
    first, last = max(0, low - AROUND), min(len(text), high + AROUND)
    if first:
        first = text.find(" ", first, low) + 1 or first
    if last < len(text):
        space = text.rfind(" ", high, last)
        last = space if space > high else last
    return first, last


def _role(at: int, found: LayerMap) -> str:
    """Whether a character belongs to the prediction, to the gold answer or to both."""
    said, gold = (place is not None and place[0] <= at < place[1] for place in (found.place, found.gold_place))
    return "both" if said and gold else "said" if said else "gold" if gold else ""


# ---------------------------------------------------------------------- what the map shows


def _describe_strength(found: LayerMap, kind: Kind) -> list[str]:
    positive = found.strength.clip(min=0)  # (layer, token)
    if not positive.any():
        return [f"No state pushes {_towards(kind)}."]
    columns = found.strength.sum(axis=0)  # (token)
    order = [place for place in np.argsort(-columns, kind="stable") if columns[place] > 0]
    strongest = [_quoted(word) for word in dict.fromkeys(found.tokens[place] for place in order)][:3]
    sentences = [_describe_strongest(found, kind)]
    if strongest:
        push = "pushes" if len(strongest) == 1 else "push"
        sentences.append(f"Over all layers, {listed(strongest)} {push} most {_towards(kind)}.")
    if not found.through:
        sentences.append(_describe_layers(found, positive))
    if found.answer:
        sentences.append(_describe_answer(found, positive, found.answer))
    return sentences


def _describe_strongest(found: LayerMap, kind: Kind) -> str:
    layer, token = np.unravel_index(int(np.abs(found.strength).argmax()), found.strength.shape)
    value, where = found.strength[layer, token], the_layer(found.layers[layer])
    against = "towards a lower score" if _is_score(kind) else "against the prediction"
    way = _towards(kind) if value > 0 else against
    state = f"{_quoted(found.tokens[token])} at {where}"
    return f"The strongest single state is {state}: it pushes {way}, by {abs(value):.2f}."


def _describe_layers(found: LayerMap, positive: np.ndarray) -> str:
    """How the push is spread over the layers, which only a direct reading can tell."""
    rows, count = positive.sum(axis=1) / positive.sum(), len(found.layers)  # (layer)
    top, half = int(rows.argmax()), upper_half(count)
    return (
        f"The largest share of that push comes from {the_layer(found.layers[top])}: {100 * rows[top]:.1f} % (an even "
        f"share would be {100 / count:.1f} %). The upper half of the layers has {100 * rows[half].sum():.1f} % (even: "
        f"{100 * (count // 2) / count:.1f} %)."
    )


def _describe_answer(found: LayerMap, positive: np.ndarray, answer: Place) -> str:
    """The share of the answer's own tokens: of everything, or layer by layer where each layer adds up on its own."""
    tokens = f"The answer's own tokens ({answer[1] - answer[0] + 1} of {len(found.tokens)})"
    own = positive[:, answer[0] : answer[1] + 1].sum(axis=1)  # (layer)
    if not found.through:
        return f"{tokens} have {100 * own.sum() / positive.sum():.1f} % of it."
    shares = own / np.maximum(positive.sum(axis=1), np.finfo(float).tiny)  # (layer)
    return (
        f"{tokens} carry {100 * shares[0]:.0f} % of the push at {the_layer(found.layers[0])} and "
        f"{100 * shares[-1]:.0f} % at {the_layer(found.layers[-1])}."
    )


def _is_score(kind: Kind) -> bool:
    return issubclass(kind.results, ScoreResults)


def _towards(kind: Kind) -> str:
    return "towards a higher score" if _is_score(kind) else "towards the prediction"


# ---------------------------------------------------------------------- the picture


def _draw(found: LayerMap, shown: list[int], kind: Kind) -> dict[str, Any]:
    altair = import_altair()
    # A word may occur twice: positions keep its columns apart, and the axis leaves them out.
    keys = {place: f"{place:03d} {found.tokens[place]}" for place in shown}
    cells: list[dict[str, Any]] = [
        {"key": keys[place], "token": found.tokens[place], "layer": name, "strength": round(float(row[place]), 4)}
        for name, row in zip(found.layers, found.strength, strict=True)
        for place in shown
    ]
    squares = [
        {"key": keys[place], "token": found.tokens[place], "row": row}
        for row, ends in ((GOLD, found.target), (SAID, found.answer))
        for place in (range(ends[0], ends[1] + 1) if ends else ())
        if place in keys
    ]
    order = [*dict.fromkeys(square["row"] for square in squares), *reversed(found.layers)]
    x = altair.X("key:N", scale=altair.Scale(domain=_columns(keys)), sort=None, title=None, axis=_axis(len(keys)))
    y = altair.Y("layer:N", scale=altair.Scale(domain=order), sort=None, title=None)
    height = min(23 * len(order), HEIGHT)
    map = chart_of(cells, height).mark_rect()
    map = map.encode(
        x=x,
        y=y,
        color=_colour(max(abs(cell["strength"]) for cell in cells) or 1.0, kind),
        tooltip=tips("token:N", "layer:N", ("strength:Q", None, ".3f")),
    )
    places = chart_of(squares, height).mark_square(size=60, opacity=1)
    places = places.encode(x=x, y="row:N", tooltip=tips("token:N", ("row:N", "part of the")))
    return dict((map + places if squares else map).to_dict())


def _columns(keys: dict[int, str]) -> list[str]:
    """The keys in order, with an empty column where tokens are left out."""
    found: list[str] = []
    for place, key in keys.items():
        if found and place - 1 not in keys:
            found.append("gap …")
        found.append(key)
    return found


def _axis(tokens: int) -> Any:
    size = 12 if tokens <= 30 else 10 if tokens <= 50 else 9
    words = "slice(datum.label, 4)"  # without the position
    return import_altair().Axis(labelExpr=words, labelAngle=-90, labelOverlap=False, labelFontSize=size, ticks=False)


def _colour(limit: float, kind: Kind) -> Any:
    altair = import_altair()
    title, less, more = ("score", "lower", "higher") if _is_score(kind) else ("pushes", "against", "towards")
    words = f"datum.value < 0 ? '{less}' : datum.value > 0 ? '{more}' : '0'"
    return altair.Color(
        "strength:Q",
        title=title,
        legend=altair.Legend(
            orient="top", titleOrient="left", values=[-limit, 0, limit], labelExpr=words, offset=4, gradientThickness=10
        ),
        scale=two_sided(limit, limit / 30),
    )


def _note(found: LayerMap, shown: list[int]) -> str:
    way = (
        "The gradient passes through the layers above and the head, so each row adds up on its own."
        if found.through
        else "The gradient is that of the states as the head reads them, so all rows add up together."
    )
    part = f" {len(shown)} of {len(found.tokens)} tokens are shown." if len(shown) < len(found.tokens) else ""
    return (
        f"Strength: the gradient of {found.what} ({found.score:.2f}) times the state's difference from the mean of its "
        f"layer over these tokens, summed over the hidden dimension. {way} Examples were chosen for variety and by "
        f"length.{part}"
    )
