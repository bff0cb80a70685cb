"""Config and store name the same choices: config.py may not import the store, which takes seconds to load."""

from dataclasses import fields

from bertvision.config import StoreConfig
from bertvision.sources.store import DTYPES
from bertvision.sources.store.format import PARTS


def test_a_config_may_ask_for_what_a_store_can_hold() -> None:
    choices = {field.name: field.metadata["choices"] for field in fields(StoreConfig)}
    assert choices["dtype"] == ("auto", *DTYPES)
    assert choices["keep"] == PARTS
