"""Config and store name the same choices: config.py may not import the store, which takes seconds to load."""

from bertvision import config
from bertvision.sources.store import DTYPES
from bertvision.sources.store.format import PARTS


def test_a_config_may_ask_for_what_a_store_can_hold() -> None:
    assert config.CHOICES["store.dtype"] == ("auto", *DTYPES)
    assert config.STORE_PARTS == PARTS
