from typing import Any

import pytest
from tiny_training import member_of

from bertvision.encoder.states import StateShape
from bertvision.heads import Target, build_head
from bertvision.kinds import LABEL
from bertvision.report.saved_heads import name_layers, names_read


def test_layers_are_named_from_the_embeddings_up() -> None:
    assert name_layers(range(3)) == ["embeddings", "layer 1", "layer 2"]
    assert name_layers([0, 4, 12], pooled=True) == ["embeddings", "layer 4", "layer 12", "pooled output"]


@pytest.mark.parametrize(
    ("settings", "pooled", "named"),
    [({"read": "cls"}, True, True), ({"read": "cls"}, False, False), ({"read": "mean"}, True, False)],
)
def test_the_pooled_output_is_named_where_the_head_reads_it(settings: Any, pooled: bool, named: bool) -> None:
    member = member_of("learned_pooling", LABEL, **settings)
    head = build_head(member, StateShape(3, 32, pooled), Target(LABEL, 2))
    expected = ["embeddings", "layer 5", "layer 7", *(["pooled output"] if named else [])]
    assert names_read(head, [0, 5, 7]) == expected
    assert names_read(head, None)[:3] == ["embeddings", "layer 1", "layer 2"]
