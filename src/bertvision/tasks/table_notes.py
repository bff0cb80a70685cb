"""Notes on a user's table: what was guessed, rows left out, labels that look wrong."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from bertvision.kinds import LABEL, Kind
from bertvision.tables import counted
from bertvision.tasks.files import Columns
from bertvision.tasks.guess_columns import Given
from bertvision.tasks.guess_kind import numbers_in
from bertvision.tasks.table_source import SHOWN, Source, listed, quoted


def note_on_columns(given: Given, columns: Columns, kind: Kind, values: Counter[str], source: Source) -> list[str]:
    """Which columns were guessed and how to change them; nothing if all were given."""
    used, change = [], []
    if given.text is None:
        used.append(f"column '{columns.text}' as text")
        change.append(source.option("text"))
        if given.text_pair is None and columns.text_pair is not None:
            used[0] = f"columns '{columns.text}' and '{columns.text_pair}' as texts"
            change.append(source.option("text_pair"))
    if given.label is None:
        targets = _describe_values(kind, values)
        used.append(f"{'' if used else 'column '}'{columns.label}' as {kind} ({targets})")
        change.append(source.option("label"))
    return [f"Using {listed(used)}. Change this with {listed(change)}."] if used else []


def _describe_values(kind: Kind, values: Counter[str]) -> str:
    numbers = None if kind is LABEL else numbers_in(values)
    if not numbers:
        return counted(len(values), str(kind))
    return f"from {min(numbers.values()):g} to {max(numbers.values()):g}"


def notes_on_rows(source: Source, total: int, complete: int, kept: int, gaps: Sequence[str]) -> list[str]:
    """Rows skipped because they are incomplete, and rows not drawn."""
    notes = [f"Left out {counted(total - complete, 'row')} of {source.name}: {'; '.join(gaps)}."] if gaps else []
    if kept < complete:
        notes.append(
            f"{source.name} has {counted(total, 'row')}; {kept:,} were drawn at random (change this with "
            f"{source.option('most_rows')})."
        )
    return notes


def notes_on_labels(values: Counter[str], column: str) -> list[str]:
    """Labels with a single row, and labels that differ only by case or blanks."""
    notes = []
    single = [label for label, rows in values.items() if rows == 1]
    if single:
        verb = "has" if len(single) == 1 else "have"
        notes.append(f"{counted(len(single), 'label')} in column '{column}' {verb} only one row: {quoted(single)}.")
    alike: dict[str, list[str]] = defaultdict(list)
    for label in values:
        alike[" ".join(label.split()).casefold()].append(label)
    groups = [labels for labels in alike.values() if len(labels) > 1]
    for labels in groups[:SHOWN]:
        rows = listed([f"{values[label]:,}" for label in labels])
        notes.append(f"{quoted(labels)} look alike: {rows} rows. If they are the same label, write them the same way.")
    if len(groups) > SHOWN:
        notes.append(f"{len(groups) - SHOWN} more groups of labels look alike.")
    return notes


def note_on_conflicts(rows: Sequence[tuple[str, str | None, str]]) -> list[str]:
    """Rows with the same text and different labels."""
    labels: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    for text, pair, label in rows:
        labels[text, pair].add(label)
    conflicts = {texts for texts, found in labels.items() if len(found) > 1}
    count = sum((text, pair) in conflicts for text, pair, _ in rows)
    if not conflicts:
        return []
    return [
        f"{counted(count, 'row')} have the same text as another row but a different label "
        f"({counted(len(conflicts), 'text')}). They can't all be predicted correctly."
    ]
