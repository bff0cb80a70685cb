"""The forms of the stamps (disk/stamps.py) in a run folder."""

from typing import Annotated, NotRequired

from msgspec import Meta

from bertvision.disk import Stamp
from bertvision.disk.forms import Count, Epochs, Figures, Layer, Seconds


class EncoderStamp(Stamp):
    """Of a snapshot's encoder; `save_snapshot` writes it."""

    parameters: Annotated[int, Meta(ge=1, le=10**15)]
    epochs: NotRequired[Epochs]
    seconds: NotRequired[Seconds | None]
    tokens: NotRequired[Count | None]
    memory: NotRequired[Count | None]
    trained_parameters: NotRequired[Count]


class HeadStamp(Stamp):
    """Of a trained head; training and `fit` write it."""

    parameters: Count
    encoder: NotRequired[str]
    """The stamp of the encoder that it was trained on."""
    layers: NotRequired[Annotated[list[Layer], Meta(min_length=1, max_length=1001)] | None]
    """The layers that it reads; None: all."""
    states: NotRequired[str | None]
    failed: NotRequired[bool | None]
    seconds: NotRequired[Seconds | None]
    tokens: NotRequired[Count | None]
    memory: NotRequired[Count | None]


class PredictionsStamp(Stamp):
    """Of a model's predictions on a split; scoring writes it."""

    scores: Figures
