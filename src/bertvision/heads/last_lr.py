"""last_lr: logistic or ridge regression on the last layer, read as the encoder was made. The control's convex twin.

This is what most people do with a sentence encoder. 2,050 parameters with BERT-large for two labels.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from bertvision.heads.base import AS_MADE, HEADS, HeadConfig
from bertvision.heads.linear import LinearHead
from bertvision.heads.towers import pairs_setting
from bertvision.settings import setting


@dataclass(frozen=True)
class LastConfig(HeadConfig):
    read: str = setting(
        "mean",
        f"states to read: [CLS] ('cls'), or the mean or maximum over tokens; {AS_MADE}",
        choices=("cls", "mean", "max"),
    )
    pairs: str = pairs_setting()
    strength: float | None = setting(
        None,
        "strength of the L2 penalty; default: chosen on held-out data from a path of strengths",
        above=0,
        below=1e30,
    )


@HEADS.register("last_lr")
class LastLayerRegression(LinearHead):
    Config = LastConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {"last_lr": {}, "last_lr_towers": {"pairs": "towers"}}

    @property
    def layer(self) -> int:
        """The last encoder layer, never the pooled output."""
        return self.shape.layers - 1
