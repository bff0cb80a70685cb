"""The layer map: one example, its tokens across, the layers up, and how strongly each hidden state speaks for what a
head says of it.

A state's strength is gradient · (state - mean state of its layer in the window), of a score: to first order, what the
score owes to this token's being other than the average one. Against zero instead of the mean the map would be of what
all tokens have in common, which is much in BERT, and empty for a head that normalises what it reads: scaling a state
changes nothing there. The score is the start logit of the answer's first token plus the end logit of its last one
(logits, not log-probabilities: those hardly move any more where a head is sure); for labels the label's logit above the
mean of the others, since only differences count; for scores the score. There are two ways to look:

- directly: what the head itself reads of each token. Of a linear head on a weighted mean of the layers the strengths
  add up to the two logits above the window's average ones. For heads that look at many tokens.
- through the encoder: all that the layers above and the head make of each state. For heads that see one token (spans)
  or one state of a sequence, whose direct reading would be an all but empty picture.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertvision.analysis.block import Block, Cell, Column, Frame
from bertvision.analysis.drawing import chart_of, import_altair
from bertvision.analysis.evidence import Evidence, Model
from bertvision.analysis.layers import (
    layers_of,
    name_layers,
    open_encoder,
    predictions_stamp,
    saved_groups,
    the,
    title_of,
    upper_half,
)
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.errors import UserError, suggest
from bertvision.evaluation.marks import ScoreMarks, SpanMarks
from bertvision.evaluation.predictions import Predictions, build_predictions
from bertvision.heads import Head, load_head
from bertvision.progress import Reporter
from bertvision.rundir import fingerprint, read_json, write_json
from bertvision.sources import pack_tokens
from bertvision.tasks.base import Example, TargetKind

VERSION = 1  # raise it when the same heads would give other maps
CANDIDATES = 500  # examples among which one is chosen by its length
LONG, NICE = 60, 40  # tokens of an example: at most, and best
SHOWN = 60  # tokens in the picture: more would be too narrow to be read
AROUND = 160  # characters of a passage that are shown on each side of the answer
SILENT = "no answer"
GOLD, SAID = "gold answer", "answer given"

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LayerMap:
    example: str
    """Its id."""
    head: str
    tokens: list[str]
    layers: list[str]
    """From below."""
    strength: Float  # (layer, token)
    score: float
    what: str
    """The score that states speak for, in words."""
    through: bool
    """Whether the encoder's layers above a state are followed, or only what the head itself reads."""
    said: str
    gold: str
    other: str
    """What the encoder itself said."""
    answer: tuple[int, int] | None = None
    """First and last token of the answer that was given, where it is one of the text's."""
    target: tuple[int, int] | None = None
    """First and last token of the gold answer, where this window holds it."""
    front: int = 0
    """Tokens before the passage: the question and its marks. 0 where there is no passage."""
    texts: tuple[str, ...] = ()
    place: tuple[int, int] | None = None
    """The characters of the answer in the passage."""

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "strength": self.strength.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LayerMap":
        strength = np.array(values["strength"], dtype=np.float64)  # (layer, token)
        lists = ("answer", "target", "texts", "place")
        tuples = {key: None if values[key] is None else tuple(values[key]) for key in lists}
        return cls(**{**values, **tuples, "strength": strength})


def compute_layer_map(
    evidence: Evidence,
    split: str,
    example_id: str | None = None,
    head: str | None = None,
    through: bool | None = None,
) -> LayerMap:
    """The map of one example for one head: by default the best head and an example that it got right and the encoder
    itself wrong. `through` the encoder, or the head's direct reading; absent: what suits the head."""
    model = _find_model(evidence, head)
    examples = evidence.examples(split)
    if examples is None:
        raise UserError(f"the examples of {split} that were scored are no longer there.")
    number = _choose_example(evidence, split, model, examples) if example_id is None else _find(examples, example_id)
    other = evidence.encoder(model.epochs).models[0].said(split, {number})[number]
    return _map_example(evidence, model, examples[number], _bare(other, evidence.kind), through)


def _find_model(evidence: Evidence, head: str | None) -> Model:
    groups = saved_groups(evidence)
    if not groups:
        raise UserError(f"'{evidence.run.path}' has no heads to look at: train some (`bertvision run`).")
    if head is None:
        best = evidence.best_head(evidence.last)
        chosen = [group for group in groups if best is not None and group.name == best.name]
        return [*chosen, *(group for group in groups if group.role == "head"), *groups][0].models[0]
    named = {model.name: model for group in groups for model in group.models}
    named |= {group.name: group.models[0] for group in groups if group.name not in named}
    if head not in named:
        raise UserError(f"the run has no head '{head}' at {evidence.last:g} epochs: {suggest(head, named)}")
    return named[head]


def _find(examples: list[Example], id: str) -> int:
    for number, example in enumerate(examples):
        if example.id == id:
            return number
    raise UserError(f"there is no example '{id}': ids are like '{examples[0].id}'.")


def _bare(row: dict[str, Any], kind: TargetKind) -> str:
    """What a line of predictions.jsonl says, in a word."""
    if kind is TargetKind.SPAN:
        return row["answer"] or SILENT
    return str(row["label"]) if kind is TargetKind.LABEL else f"{row['score']:.2f}"


# ---------------------------------------------------------------------- which example


def _choose_example(evidence: Evidence, split: str, model: Model, examples: list[Example]) -> int:
    """One that the head got right and the encoder itself wrong, short enough to be read; the first of equals."""
    numbers = _telling(model, evidence.encoder(model.epochs).models[0], split)[:CANDIDATES]
    features = evidence.job.build_features([examples[number] for number in numbers])
    lengths = np.bincount(features.example, weights=features.lengths).tolist()  # of each candidate
    nearest = min(range(len(numbers)), key=lambda place: (lengths[place] > LONG, abs(lengths[place] - NICE), place))
    return int(numbers[nearest])


def _telling(model: Model, encoder: Model, split: str) -> npt.NDArray[np.int64]:
    """Examples to choose from: those that tell the head from the encoder where there are any, otherwise those that the
    head got right, otherwise all."""
    ours, theirs = model.marks(split), encoder.marks(split)
    if isinstance(ours, ScoreMarks) and isinstance(theirs, ScoreMarks):
        gain = np.abs(theirs.value - theirs.target) - np.abs(ours.value - ours.target)  # (example)
        return np.argsort(-gain, kind="stable")[: max(1, len(gain) // 50)]
    assert not isinstance(ours, ScoreMarks) and not isinstance(theirs, ScoreMarks)
    right = ours.right(model.threshold or 0.0)  # (example)
    wrong = ~theirs.right(encoder.threshold or 0.0)  # (example)
    # A question that is rightly left unanswered shows no answer.
    shown = ours.has_answer if isinstance(ours, SpanMarks) else np.ones_like(right)  # (example)
    for wanted in (right & wrong & shown, right & shown, right):
        if wanted.any():
            return np.flatnonzero(wanted)
    return np.arange(len(right))


# ---------------------------------------------------------------------- the map


@dataclass(frozen=True)
class _Aim:
    """The score whose owing is asked: one window, and places in the outputs that the head gives for it."""

    window: int
    said: str
    start: int = 0
    end: int = 0
    label: int = 0
    place: tuple[int, int] | None = None


def _map_example(evidence: Evidence, model: Model, example: Example, other: str, through: bool | None) -> LayerMap:
    job, kind = evidence.job, evidence.kind
    head = load_head(evidence.head_folder(model))[0].to(job.machine.device)
    encoder = open_encoder(evidence, model).float()
    encoder.take_route("padded")
    features = job.build_features([example])
    with torch.no_grad():
        outputs = head(encoder(pack_tokens(features, np.arange(len(features))), keep=(head.reads,)))
    aim = _take_aim(evidence, model, example, features, outputs.float().cpu())
    if through is None:
        through = not _sees_many(head)
    look = _look_through if through else _look_directly
    strength, score = look(encoder, head, features, aim)  # (layer, token)
    ids, offsets = features.input_ids[features.tokens_of(aim.window)], features.offsets[features.tokens_of(aim.window)]
    passage = np.flatnonzero(offsets[:, 0] >= 0)  # (passage token)
    target = int(features.start[aim.window]), int(features.end[aim.window])
    return LayerMap(
        example.id,
        title_of(model),
        [_readable(encoder, int(id)) for id in ids],
        name_layers(encoder.layers),
        strength.round(6),
        score,
        _in_words(kind, aim, head.target.labels),
        through,
        aim.said,
        _gold(evidence, example),
        other,
        (aim.start, aim.end) if kind is TargetKind.SPAN and aim.start else None,
        target if kind is TargetKind.SPAN and target[0] else None,
        int(passage[0]) if kind is TargetKind.SPAN and len(passage) else 0,
        (example.text,) if example.text_pair is None else (example.text, example.text_pair),
        aim.place,
    )


def _sees_many(head: Head) -> bool:
    """Whether what a head says of one answer hangs on many tokens' states by the head itself."""
    return head.reads == "tokens" and (head.mixes_tokens or head.target.kind is not TargetKind.SPAN)


def _take_aim(evidence: Evidence, model: Model, example: Example, features: Features, outputs: Tensor) -> _Aim:
    settings, task = evidence.job.config.evaluate, evidence.task
    found = build_predictions(task, outputs.numpy(), features, [example], 1, settings.max_answer_tokens)
    if task.kind is TargetKind.SPAN:
        return _aim_at_span(found, features, outputs, model.threshold or 0.0)
    if task.kind is TargetKind.SCORE:
        return _Aim(0, f"{found.outputs()[0]:.2f}")
    label = int(found.label_indices()[0])
    # Several windows: the one that says most clearly that there is an answer speaks for all.
    window = int(outputs.softmax(dim=1)[:, 1].argmax()) if task.windowed else 0
    return _Aim(window, task.labels[label], label=label)


def _aim_at_span(found: Predictions, features: Features, outputs: Tensor, threshold: float) -> _Aim:
    """The window where the best span scores best, and its tokens; [CLS] where the head gives no answer."""
    answer, best = found.answers[0], (-np.inf, 0, 0, 0)
    for window in range(len(features)):
        tokens = features.tokens_of(window)
        low, high = features.offsets[tokens].T  # (token), (token)
        touched = np.flatnonzero((low < answer.end) & (high > answer.start) & (high > low))  # (token of the answer)
        if len(touched):
            scores = outputs[tokens].log_softmax(dim=0)  # (token, 2)
            start, end = int(touched[0]), int(touched[-1])
            best = max(best, (float(scores[start, 0] + scores[end, 1]), window, start, end), key=lambda one: one[0])
    if answer.null_lead > threshold or not answer.text:
        return _Aim(best[1], SILENT)
    return _Aim(best[1], answer.text, best[2], best[3], place=(answer.start, answer.end))


def _score_of(outputs: Tensor, kind: TargetKind, aim: _Aim) -> Tensor:
    """The score of what was said, from a head's outputs for the window alone."""
    if kind is TargetKind.SPAN:
        return outputs[aim.start, 0] + outputs[aim.end, 1]
    if kind is TargetKind.SCORE:
        return outputs[0, 0]
    others = torch.arange(outputs.shape[1], device=outputs.device) != aim.label  # (label)
    return outputs[0, aim.label] - outputs[0, others].mean()


def _look_directly(encoder: Encoder, head: Head, features: Features, aim: _Aim) -> tuple[Float, float]:
    """Strengths (layer, token) by what the head itself reads of each token."""
    assert head.reads == "tokens", "one state a sequence is of no token"
    with torch.no_grad():
        states = encoder(pack_tokens(features, np.array([aim.window])), keep=("tokens",))
    read = states.read("tokens").requires_grad_()  # (token, layer, hidden)
    score = _score_of(head(states).float(), head.target.kind, aim)
    (gradient,) = torch.autograd.grad(score, [read])  # (token, layer, hidden)
    strength = (gradient * (read - read.mean(dim=0))).sum(dim=2).T  # (layer, token)
    return strength.detach().double().cpu().numpy(), score.item()


def _look_through(encoder: Encoder, head: Head, features: Features, aim: _Aim) -> tuple[Float, float]:
    """Strengths (layer, token) by all that becomes of each state, in the layers above and in the head."""
    given: list[Any] = []
    hook = encoder.model.register_forward_hook(lambda module, inputs, output: given.append(output))
    encoder.requires_grad_(True)  # so that a graph is built; no weight's gradient is asked for
    try:
        states = encoder(pack_tokens(features, np.array([aim.window])), keep=(head.reads,))
    finally:
        encoder.requires_grad_(False)
        hook.remove()
    score = _score_of(head(states).float(), head.target.kind, aim)
    inner = [given[0].hidden_states[layer] for layer in encoder.layers[:-1]]  # each (1, token, hidden)
    layers = [*inner, given[0].last_hidden_state]
    gradients = torch.autograd.grad(score, layers)  # each (1, token, hidden)
    own = [layer - layer.mean(dim=1) for layer in layers]  # each (1, token, hidden)
    rows = [(gradient * state)[0].sum(dim=1) for gradient, state in zip(gradients, own, strict=True)]  # each (token)
    return torch.stack(rows).detach().double().cpu().numpy(), score.item()


def _readable(encoder: Encoder, id: int) -> str:
    """A token as people read it; one that goes on a word begins with a dot."""
    tokenizer = encoder.tokenizer
    assert tokenizer is not None
    token = str(tokenizer.convert_ids_to_tokens(id))
    if token.startswith("##"):
        return f"·{token[2:]}"
    return tokenizer.convert_tokens_to_string([token]).strip() or token


def _in_words(kind: TargetKind, aim: _Aim, labels: int) -> str:
    if kind is TargetKind.SCORE:
        return "the score"
    if kind is TargetKind.LABEL:
        return (
            f"the logit of '{aim.said}' above {'that of the other label' if labels == 2 else 'the mean of the others'}"
        )
    if aim.said == SILENT:
        return "the start and end logits of the first token, which mean that there is no answer"
    return "the start logit of the answer's first token plus the end logit of its last one"


def _gold(evidence: Evidence, example: Example) -> str:
    if evidence.kind is TargetKind.SPAN:
        return " / ".join(dict.fromkeys(answer.text for answer in example.answers or ())) or SILENT
    assert example.target is not None, "scored examples have a target"
    return evidence.task.labels[int(example.target)] if evidence.kind is TargetKind.LABEL else f"{example.target:.2f}"


# ---------------------------------------------------------------------- its block


def layer_map(evidence: Evidence, split: str, reporter: Reporter) -> Block | None:
    """The map of a telling example for the best head, kept in analyses/layer_map_<split>.json."""
    if not saved_groups(evidence):
        return None
    try:
        found = _cached_map(evidence, split, reporter)
    except UserError as error:
        reporter.say(f"the layer map is left out: {error}")
        return None
    shown = choose_tokens(found)
    return Block(
        f"layer_map_{split}",
        "Layer map of one example",
        [*_tell_example(found, evidence.kind), *_tell_strength(found, evidence.kind)],
        _frame_of(found),
        _draw(found, shown, evidence.kind),
        _map_in_words(found, evidence.kind),
        _note(found, shown, evidence.kind),
        folded=True,
    )


def _cached_map(evidence: Evidence, split: str, reporter: Reporter) -> LayerMap:
    model = _find_model(evidence, None)
    encoder = evidence.encoder(model.epochs).models[0]
    stamps = [predictions_stamp(one, split) for one in (model, encoder)]
    stamp = fingerprint("layer map", VERSION, stamps, model.name, layers_of(evidence, model))
    path = evidence.run.path / "analyses" / f"layer_map_{split}.json"
    known = read_json(path)
    if known is not None and known["stamp"] == stamp:
        return LayerMap.from_dict(known["map"])
    with reporter.bar("layer map", 1, "examples") as bar:
        found = compute_layer_map(evidence, split)
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


def _tell_example(found: LayerMap, kind: TargetKind) -> list[str]:
    said = f"{found.head} says {_quoted(found.said)} (gold: {_quoted(found.gold)}; the encoder itself: "
    said += f"{_quoted(found.other)})."
    if kind is not TargetKind.SPAN:
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


def _tell_strength(found: LayerMap, kind: TargetKind) -> list[str]:
    speaks, positive = _speaks(kind), found.strength.clip(min=0)  # (layer, token)
    total, count = positive.sum(), len(found.layers)
    if not total:
        return [f"No state {speaks}."]
    rows, columns = positive.sum(axis=1) / total, found.strength.sum(axis=0)  # (layer), (token)
    layer, token = np.unravel_index(int(found.strength.argmax()), found.strength.shape)
    order = [place for place in np.argsort(-columns, kind="stable") if columns[place] > 0]
    strongest = list(dict.fromkeys(found.tokens[place] for place in order))[:3]
    top, half = int(rows.argmax()), upper_half(count)
    sentences = [
        f"Of all strength that {speaks}, most is at {the(found.layers[top])}: {100 * rows[top]:.1f} % (an even share: "
        f"{100 / count:.1f} %). The upper half of the layers has {100 * rows[half].sum():.1f} % (even: "
        f"{100 * (count // 2) / count:.1f} %).",
        f"The strongest single state is that of {_quoted(found.tokens[token])} at {the(found.layers[layer])}"
        + (
            f"; over all layers {_listed(strongest)} speak{'s' if len(strongest) == 1 else ''} most."
            if strongest
            else "."
        ),
    ]
    if found.answer:
        own = positive[:, found.answer[0] : found.answer[1] + 1].sum() / total
        tokens = found.answer[1] - found.answer[0] + 1
        sentences.append(
            f"{100 * own:.1f} % of that strength is on the answer's own {tokens} of {len(found.tokens)} tokens."
        )
    return sentences


def _speaks(kind: TargetKind) -> str:
    return "speaks for a higher score" if kind is TargetKind.SCORE else "speaks for what was said"


def _listed(words: list[str]) -> str:
    quoted = [_quoted(word) for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _frame_of(found: LayerMap) -> Frame:
    columns = [Column("place"), Column("token"), *(Column(name, 3) for name in found.layers)]
    rows: list[list[Cell]] = [
        [place, token, *(float(value) for value in found.strength[:, place])]
        for place, token in enumerate(found.tokens)
    ]
    return Frame(columns, rows)


def _draw(found: LayerMap, shown: list[int], kind: TargetKind) -> dict[str, Any]:
    altair = import_altair()
    # Words come more than once: their places keep them apart, and the axis leaves the places out.
    keys = {place: f"{place:03d} {found.tokens[place]}" for place in shown}
    cells: list[dict[str, Any]] = [
        {"key": keys[place], "token": found.tokens[place], "layer": name, "strength": round(float(row[place]), 4)}
        for name, row in zip(found.layers, found.strength, strict=True)
        for place in shown
    ]
    marks = [
        {"key": keys[place], "token": found.tokens[place], "row": row}
        for row, ends in ((GOLD, found.target), (SAID, found.answer))
        for place in (range(ends[0], ends[1] + 1) if ends else ())
        if place in keys
    ]
    order = [*dict.fromkeys(mark["row"] for mark in marks), *reversed(found.layers)]
    x = altair.X("key:N", scale=altair.Scale(domain=_columns(keys)), sort=None, title=None, axis=_axis(len(keys)))
    y = altair.Y("layer:N", scale=altair.Scale(domain=order), sort=None, title=None)
    height = 18 * len(order) + 40
    map = (
        chart_of(cells, height)
        .mark_rect()
        .encode(
            x=x,
            y=y,
            color=_colour(max(abs(cell["strength"]) for cell in cells) or 1.0, kind),
            tooltip=["token:N", "layer:N", altair.Tooltip("strength:Q", format=".3f")],
        )
    )
    places = chart_of(marks, height).mark_square(size=50)
    places = places.encode(x=x, y="row:N", tooltip=["token:N", altair.Tooltip("row:N", title="part of the")])
    drawn: dict[str, Any] = ((map + places) if marks else map).to_dict()
    return drawn


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


def _colour(limit: float, kind: TargetKind) -> Any:
    altair = import_altair()
    title, less, more = ("score", "lower", "higher") if kind is TargetKind.SCORE else ("speaks", "against", "for")
    words = f"datum.value < 0 ? '{less}' : datum.value > 0 ? '{more}' : '0'"
    return altair.Color(
        "strength:Q",
        title=title,
        legend=altair.Legend(orient="top", titleOrient="left", values=[-limit, 0, limit], labelExpr=words),
        # A few states are far stronger than the rest, which should be seen, too.
        scale=altair.Scale(type="symlog", constant=limit / 30, scheme="blueorange", domain=[-limit, limit]),
    )


def _map_in_words(found: LayerMap, kind: TargetKind) -> str:
    layer, token = np.unravel_index(int(found.strength.argmax()), found.strength.shape)
    return (
        f"A map of {len(found.tokens)} tokens by {len(found.layers)} layers, the last layer on top: how strongly each "
        f"hidden state {_speaks(kind)}. Strongest: {_quoted(found.tokens[token])} at {the(found.layers[layer])}, "
        f"by {found.strength[layer, token]:.2f}."
    )


def _note(found: LayerMap, shown: list[int], kind: TargetKind) -> str:
    way = (
        "followed through the layers above and the head, so that each row is an account of its own"
        if found.through
        else "as far as the head itself reads the states; all rows together are one account"
    )
    closer = f"where {found.head} came closer to the gold score than the encoder itself"
    right = f"that {found.head} got right and the encoder itself did not"
    part = f" {len(shown)} of {len(found.tokens)} tokens are shown." if len(shown) < len(found.tokens) else ""
    return (
        "Strength: gradient times the state's difference from its layer's mean over these tokens, summed over its "
        f"values, of {found.what} ({found.score:.2f}), {way}. The last layer is on top. The example was chosen by its "
        f"length among those {closer if kind is TargetKind.SCORE else right}, as far as there are such.{part}"
    )
