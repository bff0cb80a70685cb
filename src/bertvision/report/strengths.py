"""How strongly each hidden state of one example, of each token at each layer, speaks for what a head says of it.

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

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.states import pack_tokens
from bertvision.errors import UserError, suggest
from bertvision.heads import Head, load_head
from bertvision.kinds.base import Aim, Decoding, Float
from bertvision.kinds.score import ScoreResults
from bertvision.kinds.span import SpanResults
from bertvision.pipeline.finished import FinishedRun, Group, Model
from bertvision.report.saved_heads import name_layers, open_encoder, saved_groups
from bertvision.report.wording import gold_of

CANDIDATES = 500  # examples among which one is chosen by its length
LONG, NICE = 60, 40  # tokens of an example: at most, and best


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
    """What the encoder alone said."""
    answer: tuple[int, int] | None = None
    """First and last token of the answer that was given, where it is one of the text's."""
    target: tuple[int, int] | None = None
    """First and last token of the gold answer, where this window holds it."""
    front: int = 0
    """Tokens before the passage: the question and its results. 0 where there is no passage."""
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
    run: FinishedRun,
    split: str,
    example_id: str | None = None,
    head: str | None = None,
    through: bool | None = None,
) -> LayerMap:
    """The map of one example for one head: by default the best head and an example that it got right and the encoder
    itself wrong. `through` the encoder, or the head's direct reading; absent: what suits the head."""
    model = find_model(run, head)
    examples = run.examples(split)
    if examples is None:
        raise UserError(f"the examples of {split} that were scored are no longer there.")
    number = _choose_example(run, split, model, examples) if example_id is None else _find(examples, example_id)
    other = run.encoder(model.epochs).models[0].said(split, {number})[number]
    return _map_example(run, model, examples[number], run.kind.show_row(other), through)


def find_model(run: FinishedRun, head: str | None) -> Model:
    groups = saved_groups(run)
    if not groups:
        raise UserError(f"'{run.folder.path}' has no heads to look at: train some (`bertvision run`).")
    if head is None:
        best = run.best_head(run.last)
        chosen = [group for group in groups if best is not None and group.name == best.name]
        return [*chosen, *(group for group in groups if group.role == "head"), *groups][0].models[0]
    named = {model.name: model for group in groups for model in group.models}
    named |= {group.name: group.models[0] for group in groups if group.name not in named}
    if head not in named:
        raise UserError(f"the run has no head '{head}' at {run.last:g} epochs: {suggest(head, named)}")
    return named[head]


def _find(examples: list[Example], id: str) -> int:
    ids = [example.id for example in examples]
    if id not in ids:
        raise UserError(f"there is no example '{id}': ids are like '{ids[0]}'.")
    return ids.index(id)


# ---------------------------------------------------------------------- which example


def _choose_example(run: FinishedRun, split: str, model: Model, examples: list[Example]) -> int:
    """One that the head got right and the encoder alone wrong, short enough to be read; the first of equals."""
    numbers = _candidates(model, run.encoder(model.epochs).models[0], split)[:CANDIDATES]
    features = run.job.build_features([examples[number] for number in numbers])
    lengths = np.bincount(features.example, weights=features.lengths).tolist()  # of each candidate
    nearest = min(range(len(numbers)), key=lambda place: (lengths[place] > LONG, abs(lengths[place] - NICE), place))
    return int(numbers[nearest])


def _candidates(model: Model, encoder: Model, split: str) -> npt.NDArray[np.int64]:
    """Examples to choose from: those that tell the head from the encoder where there are any, otherwise those that the
    head got right, otherwise all."""
    ours, theirs = model.results(split), encoder.results(split)
    if isinstance(ours, ScoreResults) and isinstance(theirs, ScoreResults):
        gain = theirs.errors() - ours.errors()  # (example)
        return np.argsort(-gain, kind="stable")[: max(1, len(gain) // 50)]
    right, other = ours.right(model.threshold or 0.0), theirs.right(encoder.threshold or 0.0)  # (example), (example)
    if right is None or other is None:
        return np.arange(len(ours))
    wrong = ~other  # (example)
    # A question that is rightly left unanswered shows no answer.
    shown = ours.has_answer if isinstance(ours, SpanResults) else np.ones_like(right)  # (example)
    for wanted in (right & wrong & shown, right & shown, right):
        if wanted.any():
            return np.flatnonzero(wanted)
    return np.arange(len(right))


# ---------------------------------------------------------------------- the map


def _map_example(run: FinishedRun, model: Model, example: Example, other: str, through: bool | None) -> LayerMap:
    job, kind = run.job, run.kind
    head = load_head(run.head_folder(model))[0].to(job.machine.device)
    encoder = open_encoder(run, model).float()
    encoder.take_route("padded")
    features = job.build_features([example])
    with torch.no_grad():
        outputs = head(encoder(pack_tokens(features, np.arange(len(features))), keep=(head.reads,)))
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
        other,
        (aim.start, aim.end) if kind.reads_answers and aim.start else None,
        target if kind.reads_answers and target[0] else None,
        int(passage[0]) if kind.reads_answers and len(passage) else 0,
        (example.text,) if example.text_pair is None else (example.text, example.text_pair),
        aim.place,
    )


def _sees_many(head: Head) -> bool:
    """Whether what a head says of one answer depends on many tokens' states by the head itself."""
    return head.reads == "tokens" and (head.mixes_tokens or head.target.kind.position == "sequence")


def _look_directly(encoder: Encoder, head: Head, features: Features, aim: Aim) -> tuple[Float, float]:
    """Strengths (layer, token) by what the head itself reads of each token."""
    assert head.reads == "tokens", "one state a sequence is of no token"
    with torch.no_grad():
        states = encoder(pack_tokens(features, np.array([aim.window])), keep=("tokens",))
    read = states.read("tokens").requires_grad_()  # (token, layer, hidden)
    score = aim.score(head(states).float())
    (gradient,) = torch.autograd.grad(score, [read])  # (token, layer, hidden)
    strength = (gradient * (read - read.mean(dim=0))).sum(dim=2).T  # (layer, token)
    return strength.detach().double().cpu().numpy(), score.item()


def _look_through(encoder: Encoder, head: Head, features: Features, aim: Aim) -> tuple[Float, float]:
    """Strengths (layer, token) by all that becomes of each state, in the layers above and in the head."""
    layers: list[torch.Tensor] = []  # each (1, token, hidden)
    encoder.raw = layers
    encoder.requires_grad_(True)  # so that a graph is built; no weight's gradient is asked for
    try:
        states = encoder(pack_tokens(features, np.array([aim.window])), keep=(head.reads,))
    finally:
        encoder.requires_grad_(False)
        encoder.raw = None
    score = aim.score(head(states).float())
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


def _bare_gold(run: FinishedRun, example: Example) -> str:
    found = gold_of(run, example)
    return f"{found:.2f}" if isinstance(found, float) else str(found)
