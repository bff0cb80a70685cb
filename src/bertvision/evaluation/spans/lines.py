"""The rows of predictions.jsonl for answers in arrays, straight to text: a set has hundreds of thousands of candidates,
and a dictionary and a rounding each would take longer than finding them. `Predictions.rows` makes the same by hand."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice, repeat
from json.encoder import encode_basestring

import numpy as np
import numpy.typing as npt

from bertvision.disk import escape_line_ends
from bertvision.evaluation.spans.answers import NO_SPAN, Float64, SpanAnswers

BLOCK = 512  # questions turned into text at once
NUMBERS = 1 << 14  # places in passages that are looked up
FRONTS = 5000  # decimal numbers without their last three digits that are looked up

Objects = npt.NDArray[np.object_]


def write_lines(answers: SpanAnswers, threshold: float) -> Iterator[str]:
    """A line for each question."""
    silent = answers.null_score - answers.at(0).score > threshold  # (question,)
    for first in range(0, len(answers), BLOCK):
        some = slice(first, first + BLOCK)
        candidates = iter(_candidates(answers, some))
        sizes = answers.sizes[some].tolist()
        for head, size in zip(_heads(answers, some, silent[some]), sizes, strict=True):
            line = f"{head}{', '.join(islice(candidates, size))}]}}\n"
            yield line if line.isascii() else escape_line_ends(line)


def _heads(answers: SpanAnswers, some: slice, silent: npt.NDArray[np.bool_]) -> Iterator[str]:
    """Each question's line up to its candidates."""
    there = answers.sizes[some] > 0  # (question,)
    score = np.where(there, answers.score[some, 0], NO_SPAN)  # (question,)
    best = np.where(there, answers.probability[some, 0], 0.0)  # (question,)
    start, end = (np.where(there, places[some, 0], 0).tolist() for places in (answers.start, answers.end))
    columns = zip(
        answers.ids[some], answers.passages.texts[some], silent.tolist(), start, end,
        *decimals(np.where(silent, answers.null_probability[some], best), 6),
        *decimals(answers.null_score[some], 5), *decimals(score, 5), strict=True,
    )  # fmt: skip
    for id, passage, is_silent, low, high, *digits in columns:
        text = encode_basestring("" if is_silent else passage[low:high])
        place = '"start": null, "end": null' if is_silent else f'"start": {low}, "end": {high}'
        yield (
            f'{{"id": {encode_basestring(id)}, "answer": {text}, "probability": {digits[0]}{digits[1]}, {place}, '
            f'"null_score": {digits[2]}{digits[3]}, "score": {digits[4]}{digits[5]}, "n_best": ['
        )


def _candidates(answers: SpanAnswers, some: slice) -> list[str]:
    """The candidates of all these questions, one question's after the other's."""
    there = np.arange(answers.score.shape[1]) < answers.sizes[some, None]  # (question, candidate)
    passages = chain.from_iterable(map(repeat, answers.passages.escaped[some], answers.sizes[some].tolist()))
    start, end = (places[some][there] for places in (answers.start, answers.end))  # (candidate,), (candidate,)
    base = np.repeat(answers.passages.first[some], answers.sizes[some])  # (candidate,)
    columns = zip(
        passages,
        *((place + answers.passages.shift[base + place]).tolist() for place in (start, end)),
        *map(_write_places, (start, end)),
        *decimals(answers.score[some][there], 5),
        *decimals(answers.probability[some][there], 6),
        strict=True,
    )
    return [
        f'{{"text": "{text[a:b]}", "start": {low}, "end": {high}, "score": {head}{tail}, "probability": {share}{rest}}}'
        for text, a, b, low, high, head, tail, share, rest in columns
    ]


def _write_places(places: npt.NDArray[np.int32]) -> list[str]:
    """Each number's text: looking it up takes half the time of writing it."""
    known = _numbers()
    if places.max(initial=0) < len(known):
        texts: list[str] = known[places].tolist()
        return texts
    return list(map(str, places.tolist()))


@lru_cache
def _numbers() -> Objects:
    return np.array([str(number) for number in range(NUMBERS)], dtype=object)  # (number,)


def decimals(values: Float64, places: int) -> tuple[list[str], list[str]]:
    """`repr(round(value, places))` of each value in two parts, several times as fast: the digits are looked up."""
    scaled = np.abs(values) * 10.0**places  # (value,)
    whole = np.rint(scaled)  # (value,)
    # Near a half the product may have been rounded to the other side; 1.5 is not written as 1.50000.
    odd = (np.abs(np.abs(scaled - whole) - 0.5) < 1e-4) | ((whole % 1000 == 0) & (whole > 0)) | ~(whole < 1000 * FRONTS)
    front, last = np.divmod(np.where(odd, 0.0, whole).astype(np.int64), 1000)  # (value,), (value,)
    fronts, lasts = _digits(places)
    before = fronts[front + FRONTS * np.signbit(values)].tolist()
    after = lasts[last + 1000 * (front > 0)].tolist()
    for index in np.flatnonzero(odd).tolist():
        before[index], after[index] = "", repr(round(float(values[index]), places))
    return before, after


@lru_cache
def _digits(places: int) -> tuple[Objects, Objects]:
    """Texts of numbers with these decimal places: all but their last three digits, then those with a minus; and the
    last three, as all that there is and as what follows."""
    scale = 10 ** (places - 3)
    fronts = ["", *(f"{number // scale}.{number % scale:0{places - 3}d}" for number in range(1, FRONTS))]
    alone = [repr(number / 10**places) for number in range(1000)]
    after = [f"{number:03d}".rstrip("0") for number in range(1000)]
    return (
        np.array([*fronts, *(f"-{front}" for front in fronts)], dtype=object),
        np.array([*alone, *after], dtype=object),
    )
