"""How strongly each hidden state of an example, one token at one layer, pushes towards a head's prediction.

The strength of a state is gradient · (state - mean state of its layer in the window), of a score: to first order, how
the score would change if this token were the average one. With zero in place of the mean, the map would show what all
tokens have in common, which is much in BERT, and would be empty for a head that normalises its input, since scaling a
state changes nothing there. The score is the start logit of the answer's first token plus the end logit of its last one
(logits, not log-probabilities, which hardly move where a head is sure); for labels, the logit of the label minus the
mean of the others, since only differences count; for scores, the score. There are two ways to look:

- directly: what the head itself reads of each token. For a linear head on a weighted mean of the layers, the strengths
  add up to the two logits minus their average over the window. For heads that look at many tokens.
- through the encoder: everything that the layers above and the head make of each state. For heads that see one token
  (spans) or one state of a sequence: their direct map would be almost empty.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.disk.forms import Count, Name
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import pack_tokens
from bertvision.errors import UserError, suggest
from bertvision.heads import Head, load_head
from bertvision.kinds.base import Aim, Decoding, Float
from bertvision.kinds.label import LabelResults
from bertvision.kinds.score import ScoreResults
from bertvision.kinds.span import SpanResults
from bertvision.pipeline.finished import FinishedRun, Group, Model
from bertvision.report.saved_heads import name_layers, open_encoder, saved_groups
from bertvision.report.wording import gold_of

MAPS = 8  # examples that a report shows
CANDIDATES = 100  # examples of each outcome among which some are chosen by their length
LONG, NICE = 60, 40  # tokens of an example: at most, and best
OUTCOMES = ("Only the head is right", "Both are right", "Both are wrong", "Only the encoder is right")
NEAR_OUTCOMES = ("The head is closer", "Both are close", "Both are far off", "The encoder is closer")
"""The same for scores, which are not right or wrong."""

Numbers = npt.NDArray[np.int64]


class SavedMap(TypedDict):
    """A layer map in a file: `LayerMap.to_dict`."""

    example: str
    head: Name
    tokens: list[str]
    layers: list[str]
    strength: list[list[float]]
    score: float
    what: str
    through: bool
    said: str
    gold: str
    other: str
    answer: tuple[int, int] | None
    target: tuple[int, int] | None
    front: Count
    texts: tuple[str, ...]
    place: tuple[int, int] | None
    gold_place: tuple[int, int] | None
    outcome: str


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
    """The score that the strengths explain, in words."""
    through: bool
    """Whether a state is followed through the layers above it, or only as far as the head reads it itself."""
    said: str
    gold: str
    other: str
    """The prediction of the encoder alone."""
    answer: tuple[int, int] | None = None
    """First and last token of the predicted answer."""
    target: tuple[int, int] | None = None
    """First and last token of the gold answer, if this window holds it."""
    front: int = 0
    """Tokens before the passage: the question and special tokens. 0 without a passage."""
    texts: tuple[str, ...] = ()
    place: tuple[int, int] | None = None
    """Characters of the predicted answer in the passage."""
    gold_place: tuple[int, int] | None = None
    """Characters of the first gold answer in the passage."""
    outcome: str = ""
    """Who was right, head or encoder."""

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "strength": self.strength.tolist()}

    @classmethod
    def from_dict(cls, values: "SavedMap") -> "LayerMap":
        """Raise ValueError if the parts do not belong together."""
        strength = np.array(values["strength"], dtype=np.float64)  # (layer, token)
        if strength.shape != (len(values["layers"]), len(values["tokens"])) or not values["tokens"]:
            raise ValueError("strength: expected a number for each token of each layer")
        for span in (values["answer"], values["target"]):
            if span is not None and not 0 <= span[0] <= span[1] < len(values["tokens"]):
                raise ValueError("answer, target: expected tokens")
        facts: dict[str, Any] = {**values, "strength": strength}
        return cls(**facts)


def compute_layer_map(
    run: FinishedRun,
    split: str,
    example_id: str | None = None,
    head: str | None = None,
    through: bool | None = None,
) -> LayerMap:
    """The map of one example for one head: by default the best head, and an example that it got right and the encoder
    got wrong. `through` the encoder, or what the head reads itself; None: whichever suits the head."""
    model, examples = find_model(run, head), _load_examples(run, split)
    if example_id is None:
        chosen = choose_examples(run, split, model, examples, 1)
    else:
        chosen = [(_find(examples, example_id), "")]
    (found,) = _map_examples(run, split, model, examples, chosen, through)
    return found


def compute_layer_maps(run: FinishedRun, split: str, most: int = MAPS) -> Iterable[LayerMap]:
    """Maps of varied examples for the best head, one after the other."""
    model, examples = find_model(run, None), _load_examples(run, split)
    return _map_examples(run, split, model, examples, choose_examples(run, split, model, examples, most))


def _load_examples(run: FinishedRun, split: str) -> Sequence[Example]:
    examples = run.examples(split)
    if examples is None:
        raise UserError(f"the examples of {split} that were scored are no longer available.")
    return examples


def find_model(run: FinishedRun, head: str | None) -> Model:
    groups = saved_groups(run)
    if not groups:
        raise UserError(f"'{run.folder.path}' has no saved heads. Train some with `bertvision run`.")
    if head is None:
        best = run.best_head(run.last)
        chosen = [group for group in groups if best is not None and group.name == best.name]
        return [*chosen, *(group for group in groups if group.role == "head"), *groups][0].models[0]
    named = {model.name: model for group in groups for model in group.models}
    named |= {group.name: group.models[0] for group in groups if group.name not in named}
    if head not in named:
        raise UserError(f"the run has no head '{head}' at {run.last:g} epochs: {suggest(head, named)}")
    return named[head]


def _find(examples: Sequence[Example], id: str) -> int:
    ids = [example.id for example in examples]
    if id not in ids:
        raise UserError(f"no example '{id}': ids look like '{ids[0]}'.")
    return ids.index(id)


# ---------------------------------------------------------------------- which examples


def choose_examples(
    run: FinishedRun, split: str, model: Model, examples: Sequence[Example], most: int = MAPS
) -> list[tuple[int, str]]:
    """Numbers and outcomes of varied examples, always the same: every outcome in turn, and within an outcome questions
    with and without an answer, or different labels. Those of moderate length come first."""
    found = find_outcomes(model, run.encoder(model.epochs).models[0], split)
    rank = _rank_by_length(run, examples, [part[:CANDIDATES] for _, parts in found for part in parts])
    queues = []
    for outcome, parts in found:
        ordered = [sorted(part[:CANDIDATES].tolist(), key=rank.__getitem__) for part in parts]
        queues.append([(number, outcome) for number in _take_turns(ordered)])
    taken: dict[int, str] = {}
    for number, outcome in _take_turns(queues):
        if len(taken) < most:
            taken.setdefault(number, outcome)  # the same score may be near by two measures
    names = [outcome for outcome, _ in found]
    return sorted(taken.items(), key=lambda one: names.index(one[1]))


def _rank_by_length(run: FinishedRun, examples: Sequence[Example], parts: Sequence[Numbers]) -> dict[int, int]:
    """The rank of each example: short enough to be read, then near the best length, then first."""
    numbers = sorted({number for part in parts for number in part.tolist()})
    features = run.job.build_features([examples[number] for number in numbers])
    lengths = np.bincount(features.example, weights=features.lengths)  # (candidate)
    order = sorted(range(len(numbers)), key=lambda at: (lengths[at] > LONG, abs(lengths[at] - NICE), at))
    return {numbers[at]: rank for rank, at in enumerate(order)}


def _take_turns(queues: Sequence[Sequence[Any]]) -> list[Any]:
    """The first of each, then the second of each, and so on."""
    return [one for one in chain.from_iterable(zip_longest(*queues)) if one is not None]


def find_outcomes(model: Model, encoder: Model, split: str) -> list[tuple[str, list[Numbers]]]:
    """Examples by who was right, the head or the encoder, and within that by kind of target. The outcome that tells
    most comes first."""
    ours, theirs = model.results(split), encoder.results(split)
    if isinstance(ours, ScoreResults) and isinstance(theirs, ScoreResults):
        return _near_outcomes(ours, theirs)
    right, other = ours.right(model.threshold or 0.0), theirs.right(encoder.threshold or 0.0)  # (example), (example)
    if right is None or other is None:
        return [("", [np.arange(len(ours))])]
    if isinstance(ours, SpanResults):
        parts = [ours.has_answer, ~ours.has_answer]  # each (example); a question left unanswered shows no answer
    elif isinstance(ours, LabelResults):
        parts = [ours.target == label for label in np.unique(ours.target)]  # each (example)
    else:
        parts = [np.ones_like(right)]
    masks = (right & ~other, right & other, ~right & ~other, ~right & other)  # each (example)
    return [
        # Labels take turns in being the first of an outcome; questions with an answer always are.
        (name, [np.flatnonzero(mask & part) for part in (parts[shift:] + parts[:shift])])
        for place, (name, mask) in enumerate(zip(OUTCOMES, masks, strict=True))
        for shift in [0 if isinstance(ours, SpanResults) else place % len(parts)]
    ]


def _near_outcomes(ours: ScoreResults, theirs: ScoreResults) -> list[tuple[str, list[Numbers]]]:
    """The examples that show each outcome best, a fiftieth of all, low and high gold scores apart."""
    our, their = ours.errors(), theirs.errors()  # (example), (example)
    keys = (our - their, np.maximum(our, their), -np.minimum(our, their), their - our)  # each (example), lowest first
    is_high, count = ours.target > np.median(ours.target), max(2, len(our) // 50)  # (example)
    found = []
    for place, (name, key) in enumerate(zip(NEAR_OUTCOMES, keys, strict=True)):
        order = np.argsort(key, kind="stable")  # (example)
        # Closer means closer: where the best is level or worse, nobody is.
        order = order[key[order] < 0] if place in (0, 3) else order
        found.append((name, [order[:count][high == is_high[order[:count]]] for high in (True, False)]))
    return found


# ---------------------------------------------------------------------- the map


def _map_examples(
    run: FinishedRun,
    split: str,
    model: Model,
    examples: Sequence[Example],
    chosen: list[tuple[int, str]],
    through: bool | None = None,
) -> Iterable[LayerMap]:
    """Encoder and head are loaded once for all of them."""
    others = run.encoder(model.epochs).models[0].said(split, {number for number, _ in chosen})
    head = load_head(run.head_folder(model))[0].to(run.job.machine.device)
    if head.towers:
        raise UserError(f"a map shows one sequence, but {model.name} reads each text of a pair alone.")
    encoder = open_encoder(run, model).float()
    encoder.take_route("padded")
    for number, outcome in chosen:
        found = _map_example(run, model, head, encoder, examples[number], through)
        yield dataclasses.replace(found, other=run.kind.show_row(others[number]), outcome=outcome)


def _map_example(
    run: FinishedRun, model: Model, head: Head, encoder: Encoder, example: Example, through: bool | None
) -> LayerMap:
    job, kind = run.job, run.kind
    features = job.build_features([example])
    with torch.no_grad():
        outputs = head(encoder(pack_tokens(features, np.arange(len(features))), keep=head.reads))
    outputs = outputs.float().cpu()  # (token or window, output)
    said = kind.decode(
        run.task, outputs.numpy(), features, [example], Decoding(1, job.config.evaluate.max_answer_tokens)
    )
    aim = kind.aim(run.task, said, features, outputs, model.threshold or 0.0)
    if through is None:
        through = not _sees_many(head)
    look = _look_through if through else _look_directly
    strength, score = look(encoder, head, features, aim)  # (layer, token)
    ids, offsets = features.input_ids[features.tokens_of(aim.window)], features.offsets[features.tokens_of(aim.window)]
    passage = np.flatnonzero(offsets[:, 0] >= 0)  # (passage token)
    target = int(features.start[aim.window]), int(features.end[aim.window])
    gold = example.answers[0] if example.answers else None
    return LayerMap(
        example.id,
        Group([model]).title,
        [_readable(encoder, int(id)) for id in ids],
        name_layers(encoder.layers),
        strength.round(6),
        score,
        aim.what,
        through,
        aim.said,
        _bare_gold(run, example),
        "",
        (aim.start, aim.end) if kind.reads_answers and aim.start else None,
        target if kind.reads_answers and target[0] else None,
        int(passage[0]) if kind.reads_answers and len(passage) else 0,
        (example.text,) if example.text_pair is None else (example.text, example.text_pair),
        aim.place,
        (gold.start, gold.start + len(gold.text)) if gold else None,
    )


def _sees_many(head: Head) -> bool:
    """Whether the head itself reads the states of many tokens for one prediction."""
    return "tokens" in head.reads and (head.mixes_tokens or head.target.kind.position == "sequence")


def _look_directly(encoder: Encoder, head: Head, features: Features, aim: Aim) -> tuple[Float, float]:
    """Strengths (layer, token) of what the head itself reads of each token."""
    assert "tokens" in head.reads, "one state per sequence belongs to no token"
    with torch.no_grad():
        states = encoder(pack_tokens(features, np.array([aim.window])), keep=("tokens",))
    read = states.read("tokens").requires_grad_()  # (token, layer, hidden)
    score = aim.score(head(states).float())
    (gradient,) = torch.autograd.grad(score, [read])  # (token, layer, hidden)
    strength = (gradient * (read - read.mean(dim=0))).sum(dim=2).T  # (layer, token)
    return strength.detach().double().cpu().numpy(), score.item()


def _look_through(encoder: Encoder, head: Head, features: Features, aim: Aim) -> tuple[Float, float]:
    """Strengths (layer, token) of everything that the layers above and the head make of each state."""
    layers: list[torch.Tensor] = []  # each (1, token, hidden)
    encoder.raw = layers
    encoder.requires_grad_(True)  # builds a graph; no gradient of a weight is computed
    try:
        states = encoder(pack_tokens(features, np.array([aim.window])), keep=head.reads)
    finally:
        encoder.requires_grad_(False)
        encoder.raw = None
    score = aim.score(head(states).float())
    gradients = torch.autograd.grad(score, layers)  # each (1, token, hidden)
    own = [layer - layer.mean(dim=1) for layer in layers]  # each (1, token, hidden)
    rows = [(gradient * state)[0].sum(dim=1) for gradient, state in zip(gradients, own, strict=True)]  # each (token)
    return torch.stack(rows).detach().double().cpu().numpy(), score.item()


def _readable(encoder: Encoder, id: int) -> str:
    """A token for people; one that continues a word starts with a dot."""
    tokenizer = encoder.tokenizer
    assert tokenizer is not None
    token = str(tokenizer.convert_ids_to_tokens(id))
    if token.startswith("##"):
        return f"·{token[2:]}"
    return tokenizer.convert_tokens_to_string([token]).strip() or token


def _bare_gold(run: FinishedRun, example: Example) -> str:
    found = gold_of(run, example)
    return f"{found:.2f}" if isinstance(found, float) else str(found)
