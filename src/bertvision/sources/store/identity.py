"""What a store's states hang on. Two stores with equal identity hold the same states; where one differs it is said in
what."""

from typing import Any

from bertvision.errors import UserError
from bertvision.sources.store.layout import FORMAT, Contents

READABLE = ("window settings", "layers", "parts", "dtype", "precision", "format")
# Follows from the others where one of them differs; on its own it means that texts are cut or tokenized otherwise now.
DERIVED = "token ids"


def build_identity(
    contents: Contents,
    weights: str,
    tokenizer: str,
    data: str,
    windows: dict[str, Any],
    token_ids: str,
    precision: str,
) -> dict[str, Any]:
    """`weights`, `tokenizer`, `data` and `token_ids` are hashes."""
    return {
        "encoder weights": weights,
        "tokenizer": tokenizer,
        "data": data,
        "window settings": windows,
        DERIVED: token_ids,
        "layers": list(contents.layers),
        "parts": list(contents.parts),
        "dtype": contents.dtype,
        "precision": precision,
        "format": FORMAT,
    }


def find_differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """In what two identities differ, in words."""
    differing = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
    if len(differing) > 1 and DERIVED in differing:
        differing.remove(DERIVED)
    return [
        f"{key} ({_show(found.get(key))} there, {_show(wanted.get(key))} wanted)" if key in READABLE else key
        for key in differing
    ]


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


def refuse_other(where: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises where a store is of other states than the wanted ones."""
    differences = find_differences(found, wanted)
    if differences:
        raise UserError(
            f"the store '{where}' holds other states; it differs in: {'; '.join(differences)}. Set store.path to "
            f"another place, or remove it: bertvision store rm {where}"
        )
