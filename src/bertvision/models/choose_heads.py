"""The candidates that a user names: `heads=["linear", "mlp"]`."""

from collections.abc import Sequence

from bertvision.errors import UserError, suggest
from bertvision.models.candidates import Candidate, auto_candidates


def find_candidates(names: str | Sequence[str]) -> list[Candidate]:
    """The majority baseline, the last layer and the named candidates."""
    wanted = [names] if isinstance(names, str) else list(names)
    known = {candidate.name: candidate for candidate in auto_candidates()}
    if not wanted:
        raise UserError("heads is empty: name at least one, or use 'auto'.")
    for name in wanted:
        if name not in known:
            raise UserError(f"heads has '{name}', which `fit` does not know: {suggest(str(name), ['auto', *known])}")
    always = ("majority", "last_lr")
    return [known[name] for name in dict.fromkeys([*always, *wanted])]
