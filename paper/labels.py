"""Placement of labels next to the points of a picture: each on its least crowded side."""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

WIDTH, HEIGHT = 580.0, 360.0
"""Approximate size of the plot area in pixels, for placing labels."""
SIDES = [(1, 1), (-1, -1), (0, -1), (0, 1), (1, 0), (-1, 0), (1, -1), (-1, 1)]
"""Possible sides of a label as (right, down), the preferred one first."""
ALIGN = {-1: "right", 0: "center", 1: "left"}
BESIDE, CHARACTER = 7, 5.6
"""Pixels from a point to its label, and per character."""
Spot = tuple[float, float]
Row = dict[str, Any]


class Box(NamedTuple):
    """A rectangle in pixels from the upper left corner."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def spots(self) -> list[Spot]:
        """Points of the box, dense enough that no other label fits between them."""
        middle = (self.left + self.right) / 2
        return [(x, y) for x in (self.left, middle, self.right) for y in (self.top, self.bottom)]


def place_labels(data: list[Row], field: str, across: list[float], up: list[float], joined: Iterable[str]) -> list[Row]:
    """Add the label position to each row: the side with the fewest marks, lines and labels."""
    wide, high = math.log(across[1] / across[0]), up[1] - up[0]
    points = [(WIDTH * math.log(row[field] / across[0]) / wide, HEIGHT * (up[1] - row["score"]) / high) for row in data]
    taken = [spot for x, y in points for spot in [(x, y), *Box(x - 4, y - 4, x + 4, y + 4).spots()]]
    for family in joined:
        taken += _line([point for point, row in zip(points, data, strict=True) if row["way"] == family])
    found = []
    for row, (x, y) in zip(data, points, strict=True):
        boxes = {side: _label_box(x, y, row["label"], side) for side in SIDES}
        side = min(SIDES, key=lambda side: _crowding(boxes[side], taken))
        taken += boxes[side].spots()
        found.append({**row, "align": ALIGN[side[0]], "dx": BESIDE * side[0], "dy": _down(side)})
    return found


def _line(points: list[Spot]) -> list[Spot]:
    """Points along the lines that join the given ones, dense enough that no label fits between them."""
    found = []
    for (x, y), (next_x, next_y) in pairwise(sorted(points)):
        found += [(x + step / 100 * (next_x - x), y + step / 100 * (next_y - y)) for step in range(101)]
    return found


def _down(side: tuple[int, int]) -> int:
    """Vertical offset of a label; larger directly above and below its point."""
    return side[1] * (6 if side[0] else 11)


def _label_box(x: float, y: float, label: str, side: tuple[int, int]) -> Box:
    width, middle = CHARACTER * len(label), y + _down(side)
    left = x - width / 2 if side[0] == 0 else x + BESIDE if side[0] > 0 else x - BESIDE - width
    return Box(left - 1, middle - 5, left + width + 1, middle + 5)


def _crowding(box: Box, taken: list[Spot]) -> int:
    outside = box.left < 0 or box.right > WIDTH or box.top < 0 or box.bottom > HEIGHT
    return sum(box.holds(x, y) for x, y in taken) + 1000 * outside
