"""The layer map as a report shows it: tokens across, layers up, and how strongly each hidden state speaks for what the
best head says of one example (strengths.py computes it)."""

from typing import Any

import numpy as np

from bertvision.disk import fingerprint, read_json, write_json
from bertvision.kinds import Kind
from bertvision.kinds.score import ScoreResults
from bertvision.pipeline.finished import FinishedRun
from bertvision.progress import Reporter
from bertvision.report.analysis import analysis
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair, tips, two_sided
from bertvision.report.saved_heads import heads_were_kept, layers_of, predictions_stamp, the_layer, upper_half
from bertvision.report.strengths import LayerMap, compute_layer_map, find_model
from bertvision.report.wording import listed
from bertvision.tables import Column, Rows, Table

VERSION = 1  # raise it when the same heads would give other maps
SHOWN = 60  # tokens in the picture: more would be too narrow to be read
AROUND = 160  # characters of a passage that are shown on each side of the answer
GOLD, SAID = "gold answer", "answer given"


def has_aim(run: FinishedRun, split: str) -> bool:
    """The need: that the kind says what hidden states can speak for."""
    return run.kind.has_aim


@analysis("What each layer holds", 10, "Layer map of one example", [heads_were_kept, has_aim], "states")
def layer_map(run: FinishedRun, split: str, reporter: Reporter) -> Block:
    """The map of a telling example for the best head, kept in analyses/layer_map_<split>.json."""
    found, kind = _cached_map(run, split, reporter), run.kind
    shown = choose_tokens(found)
    rows: Rows = [
        [place, token, *(float(value) for value in found.strength[:, place])]
        for place, token in enumerate(found.tokens)
    ]
    return Block(
        sentences=[*_describe_example(found, kind), *_describe_strength(found, kind)],
        table=Table(["place", "token", *(Column(name, 3) for name in found.layers)], rows),
        picture=_draw(found, shown, kind),
        alt=f"A map of {len(found.tokens)} tokens by {len(found.layers)} layers, the last layer on top: how strongly "
        f"each hidden state {_speaks(kind)}. {_describe_strongest(found)}, by {found.strength.max():.2f}.",
        note=_note(found, shown, kind),
        folded=True,
    )


def _cached_map(run: FinishedRun, split: str, reporter: Reporter) -> LayerMap:
    model = find_model(run, None)
    encoder = run.encoder(model.epochs).models[0]
    stamps = [predictions_stamp(one, split) for one in (model, encoder)]
    stamp = fingerprint("layer map", VERSION, stamps, model.name, layers_of(run, model))
    path = run.folder.path / "analyses" / f"layer_map_{split}.json"
    known = read_json(path)
    if known is not None and known["stamp"] == stamp:
        return LayerMap.from_dict(known["map"])
    with reporter.bar("layer map", 1, "examples") as bar:
        found = compute_layer_map(run, split)
        bar.advance(1)
    write_json(path, {"stamp": stamp, "map": found.to_dict()})
    return found


def choose_tokens(found: LayerMap, most: int = SHOWN) -> list[int]:
    """The tokens to show: all, or the question and what is around the answer (the strongest token without one)."""
    count = len(found.tokens)
    if count <= most:
        return list(range(count))
    front = min(found.front, most // 2)
    centre = sum(found.answer) // 2 if found.answer else int(np.abs(found.strength).sum(axis=0).argmax())
    room = most - front
    first = min(max(front, centre - room // 2), count - room)
    return [*range(front), *range(first, first + room)]


def _describe_example(found: LayerMap, kind: Kind) -> list[str]:
    said = f"{found.head} says {_quoted(found.said)} (gold: {_quoted(found.gold)}; the encoder alone: "
    said += f"{_quoted(found.other)})."
    if not kind.reads_answers:
        return [f"{' / '.join(_quoted(_excerpt(text)) for text in found.texts)}: {said}"]
    question, passage = found.texts
    return [f"{_quoted(_excerpt(question))}: {said}", f"Passage: {_quoted(_excerpt(passage, found.place))}"]


def _quoted(text: str) -> str:
    return f"“{text}”"


def _excerpt(text: str, place: tuple[int, int] | None = None) -> str:
    """What is around some characters of a text, these in brackets; or its beginning. Words are not cut."""
    low, high = place or (0, 0)
    first, last = max(0, low - AROUND), min(len(text), high + (AROUND if place else 2 * AROUND))
    if first:
        first = text.find(" ", first, low) + 1 or first
    if last < len(text):
        space = text.rfind(" ", high, last)
        last = space if space > high else last
    marked = f"{text[first:low]}⟦{text[low:high]}⟧{text[high:last]}" if place else text[:last]
    return f"{'… ' if first else ''}{marked}{' …' if last < len(text) else ''}"


def _describe_strength(found: LayerMap, kind: Kind) -> list[str]:
    speaks, positive = _speaks(kind), found.strength.clip(min=0)  # (layer, token)
    if not positive.any():
        return [f"No state {speaks}."]
    columns = found.strength.sum(axis=0)  # (token)
    order = [place for place in np.argsort(-columns, kind="stable") if columns[place] > 0]
    strongest = [_quoted(word) for word in dict.fromkeys(found.tokens[place] for place in order)][:3]
    single = _describe_strongest(found)
    if strongest:
        single += f"; over all layers {listed(strongest)} speak{'s' if len(strongest) == 1 else ''} most"
    sentences = [f"{single}."] if found.through else [_describe_layers(found, positive, speaks), f"{single}."]
    if found.answer:
        sentences.append(_describe_answer(found, positive, found.answer))
    return sentences


def _describe_strongest(found: LayerMap) -> str:
    layer, token = np.unravel_index(int(found.strength.argmax()), found.strength.shape)
    return f"The strongest single state is that of {_quoted(found.tokens[token])} at {the_layer(found.layers[layer])}"


def _describe_layers(found: LayerMap, positive: np.ndarray, speaks: str) -> str:
    """How the strength is spread over the layers, which only a direct reading can say."""
    rows, count = positive.sum(axis=1) / positive.sum(), len(found.layers)  # (layer)
    top, half = int(rows.argmax()), upper_half(count)
    return (
        f"Of all strength that {speaks}, the largest share is that of {the_layer(found.layers[top])}: "
        f"{100 * rows[top]:.1f} % (an even share: {100 / count:.1f} %). The upper half of the layers has "
        f"{100 * rows[half].sum():.1f} % (even: {100 * (count // 2) / count:.1f} %)."
    )


def _describe_answer(found: LayerMap, positive: np.ndarray, answer: tuple[int, int]) -> str:
    """How much is on the answer's own tokens: of all, or layer by layer where each layer is an account of its own."""
    tokens = f"the answer's own {answer[1] - answer[0] + 1} of {len(found.tokens)} tokens"
    own = positive[:, answer[0] : answer[1] + 1].sum(axis=1)  # (layer)
    if not found.through:
        return f"{100 * own.sum() / positive.sum():.1f} % of that strength is on {tokens}."
    shares = own / np.maximum(positive.sum(axis=1), np.finfo(float).tiny)  # (layer)
    return (
        f"On {tokens} lies {100 * shares[0]:.0f} % of what speaks for it at {the_layer(found.layers[0])}, and "
        f"{100 * shares[-1]:.0f} % at {the_layer(found.layers[-1])}."
    )


def _is_score(kind: Kind) -> bool:
    return issubclass(kind.results, ScoreResults)


def _speaks(kind: Kind) -> str:
    return "speaks for a higher score" if _is_score(kind) else "speaks for what was said"


def _draw(found: LayerMap, shown: list[int], kind: Kind) -> dict[str, Any]:
    altair = import_altair()
    # Words come more than once: their places keep them apart, and the axis leaves the places out.
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
    height = 18 * len(order) + 40
    map = chart_of(cells, height).mark_rect()
    map = map.encode(
        x=x,
        y=y,
        color=_colour(max(abs(cell["strength"]) for cell in cells) or 1.0, kind),
        tooltip=tips("token:N", "layer:N", ("strength:Q", None, ".3f")),
    )
    places = chart_of(squares, height).mark_square(size=50)
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
    words = "slice(datum.label, 4)"  # without the place
    return import_altair().Axis(labelExpr=words, labelAngle=-90, labelOverlap=False, labelFontSize=size, ticks=False)


def _colour(limit: float, kind: Kind) -> Any:
    altair = import_altair()
    title, less, more = ("score", "lower", "higher") if _is_score(kind) else ("speaks", "against", "for")
    words = f"datum.value < 0 ? '{less}' : datum.value > 0 ? '{more}' : '0'"
    return altair.Color(
        "strength:Q",
        title=title,
        legend=altair.Legend(orient="top", titleOrient="left", values=[-limit, 0, limit], labelExpr=words),
        scale=two_sided(limit, limit / 30),
    )


def _note(found: LayerMap, shown: list[int], kind: Kind) -> str:
    way = (
        "followed through the layers above and the head, so that each row is an account of its own"
        if found.through
        else "as far as the head itself reads the states; all rows together are one account"
    )
    closer = f"where {found.head} came closer to the gold score than the encoder alone"
    right = f"that {found.head} got right and the encoder alone did not"
    part = f" {len(shown)} of {len(found.tokens)} tokens are shown." if len(shown) < len(found.tokens) else ""
    return (
        "Strength: gradient times the state's difference from its layer's mean over these tokens, summed over its "
        f"values, of {found.what} ({found.score:.2f}), {way}. The last layer is on top. The example was chosen by its "
        f"length among those {closer if _is_score(kind) else right}, as far as there are such.{part}"
    )
