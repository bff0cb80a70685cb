"""Config and store offer the same choices: config.py can't import the store, which takes seconds to load."""

from dataclasses import fields

from bertvision.config import StoreConfig
from bertvision.sources.store import DTYPES
from bertvision.sources.store.format import PARTS


def test_config_and_store_offer_the_same_choices() -> None:
    choices = {field.name: field.metadata["choices"] for field in fields(StoreConfig)}
    assert choices["dtype"] == ("auto", *DTYPES)
    assert choices["keep"] == PARTS
