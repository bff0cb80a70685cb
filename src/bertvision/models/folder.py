"""Names in the folder of a fitted model, and how to recognise one."""

import os
from pathlib import Path

from bertvision.pipeline.folder import ENCODER, FITTED

FILE, FORMAT = FITTED, 1
TFIDF_FOLDER = "tfidf"
TUNED = "tuned_"
"""Names of heads on the tuned encoder begin with this."""
TUNED_LAST = f"{TUNED}last_lr"
"""The tuned encoder alone: its last layer with logistic regression."""
TUNED_AVERAGE = f"{TUNED}average"
"""The mean of the heads on the tuned encoder."""
FOLDER_NAMES = {"last_lr": ENCODER, TUNED_LAST: ENCODER}
"""Names on the leaderboard that the folder calls differently."""


def is_fitted(folder: Path | str) -> bool:
    """Whether `bertvision fit` made this folder."""
    return os.path.isfile(Path(os.path.expanduser(folder)) / FILE)
