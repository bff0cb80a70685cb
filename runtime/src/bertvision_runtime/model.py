"""Models and kits: one `predict(texts)`.

model.predict("A fine film.")                        one Result
model.predict(["A fine film.", "A dull one."])       a list of them
kit.predict(("Who wrote it?", "Ada wrote it."))      {task: Result}
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bertvision_runtime.answers import Result, decode
from bertvision_runtime.folder import ExportError, Manifest, Task, read_export
from bertvision_runtime.graph import Array, Graph
from bertvision_runtime.texts import Pair, Window, build_windows, is_alone, read_texts


def load(folder: Path | str, tasks: Iterable[str] | None = None, threads: int | None = None) -> "Model | Kit":
    """Open the folder that `bertvision export` wrote. `tasks` selects the tasks of a kit (default: all); `threads` is
    the number of CPU threads (default: one for each core)."""
    if not isinstance(folder, str | Path):
        raise ExportError(f"the model must be the path of a folder, not {folder!r}.")
    manifest, graph, tokenizer = read_export(folder)
    try:
        tokens = Tokenizer.from_str(tokenizer)
    except Exception as error:  # tokenizers raises bare Exception
        raise ExportError(
            f"tokenizer.json in '{folder}' can't be used ({str(error)[:200]}): export the model again."
        ) from None
    exported = _Exported(manifest, Graph(manifest, graph, threads), tokens)
    if manifest.is_kit:
        return Kit(exported, tasks)
    if tasks is not None:
        raise ExportError(f"tasks can't be given here: '{folder}' is a model, not a kit.")
    return Model(exported)


class _Exported:
    def __init__(self, manifest: Manifest, graph: Graph, tokenizer: Tokenizer) -> None:
        self.manifest, self.graph, self.tokenizer = manifest, graph, tokenizer

    def predict(self, pairs: dict[str, list[Pair]]) -> dict[str, list[Result]]:
        """Task → the results for its texts. A sequence that several tasks share goes through the encoder once."""
        tasks = [self.manifest.tasks[name] for name in pairs]
        found = {task.name: self._predict_towers(task, pairs[task.name]) for task in tasks if task.towers}
        joined = [task for task in tasks if not task.towers]
        windows = {t.name: build_windows(self.tokenizer, t, pairs[t.name], self.manifest.has_types) for t in joined}
        outputs = self._run(joined, windows)
        for task in joined:
            found[task.name] = [
                decode(task, [[outputs[name][window.key] for window in own] for name in task.outputs], own, pair)
                for own, pair in zip(windows[task.name], pairs[task.name], strict=True)
            ]
        return found

    def _run(self, tasks: Sequence[Task], windows: dict[str, list[list[Window]]]) -> dict[str, dict[Any, Array]]:
        """Output → sequence → values. Sequences that the same tasks read share batches."""
        readers: dict[Any, tuple[Window, list[Task]]] = {}
        for task in tasks:
            for window in (one for own in windows[task.name] for one in own):
                known = readers.setdefault(window.key, (window, []))[1]
                if not known or known[-1] is not task:
                    known.append(task)
        groups: dict[tuple[str, ...], list[Window]] = {}
        for window, some in readers.values():
            groups.setdefault(tuple(name for task in some for name in task.outputs), []).append(window)
        found: dict[str, dict[Any, Array]] = {name: {} for task in tasks for name in task.outputs}
        for names, own in groups.items():
            for name, values in self.graph.run_all(own, names).items():
                found[name] |= {window.key: value for window, value in zip(own, values, strict=True)}
        return found

    def _predict_towers(self, task: Task, pairs: list[Pair]) -> list[Result]:
        """Both texts of a pair alone through the encoder, each once."""
        numbers: dict[str, int] = {}
        places = [[numbers.setdefault(text or "", len(numbers)) for text in pair] for pair in pairs]
        alone = Task(**{**vars(task), "pairs": False})
        texts: list[Pair] = [(text, None) for text in numbers]
        windows = [own[0] for own in build_windows(self.tokenizer, alone, texts, self.manifest.has_types)]
        outputs = self.graph.run_pairs(windows, np.array(places).reshape(-1, 2), task.outputs)
        return [
            decode(task, [[outputs[name][number]] for name in task.outputs], [], pair)
            for number, pair in enumerate(pairs)
        ]


class Model:
    """A model of one task."""

    def __init__(self, exported: _Exported) -> None:
        self._exported = exported
        (self._task,) = exported.manifest.tasks.values()

    @property
    def task(self) -> str:
        return self._task.name

    @property
    def kind(self) -> str:
        """What it predicts: "label", "score" or "span"."""
        return self._task.kind

    @property
    def labels(self) -> list[str]:
        return list(self._task.labels)

    @property
    def facts(self) -> dict[str, Any]:
        """The contents of manifest.json."""
        return self._exported.manifest.facts

    def predict(self, texts: Any) -> Any:
        """A list of texts or pairs gives a list of results, one text or pair gives one."""
        pairs = read_texts(texts)
        for number, (_, second) in enumerate(pairs):
            if self._task.pairs != (second is not None):
                wanted = "pairs of texts, such as (question, passage)" if self._task.pairs else "single texts"
                raise ExportError(f"{self.task} needs {wanted}: text {number} is something else.")
        results = self._exported.predict({self.task: pairs})[self.task] if pairs else []
        return results[0] if is_alone(texts) else results

    def __repr__(self) -> str:
        return f"<exported model {self._exported.manifest.name}: {self.task}, {self._exported.manifest.precision}>"


class Kit:
    """Several tasks on one encoder."""

    def __init__(self, exported: _Exported, tasks: Iterable[str] | None = None) -> None:
        self._exported = exported
        self.tasks = self._check_tasks(tasks, list(exported.manifest.tasks))

    @property
    def facts(self) -> dict[str, Any]:
        """The contents of manifest.json."""
        return self._exported.manifest.facts

    def predict(self, texts: Any, tasks: Iterable[str] | None = None) -> Any:
        """{task: Result} for each text. Tasks on single texts read the first text of a pair; tasks on pairs skip single
        texts."""
        pairs, names = read_texts(texts), self._check_tasks(tasks, self.tasks)
        known = self._exported.manifest.tasks
        asked = {
            name: [n for n, pair in enumerate(pairs) if pair[1] is not None or not known[name].pairs] for name in names
        }
        asked = {name: numbers for name, numbers in asked.items() if numbers}
        if pairs and not asked:
            raise ExportError(f"two texts are needed for {', '.join(names)}: pass pairs, such as (question, passage).")
        found = (
            self._exported.predict(
                {
                    name: [pairs[n] if known[name].pairs else (pairs[n][0], None) for n in numbers]
                    for name, numbers in asked.items()
                }
            )
            if asked
            else {}
        )
        rows: list[dict[str, Result]] = [{} for _ in pairs]
        for name, numbers in asked.items():
            for number, result in zip(numbers, found[name], strict=True):
                rows[number][name] = result
        return rows[0] if is_alone(texts) else rows

    def _check_tasks(self, wanted: Iterable[str] | None, known: list[str]) -> list[str]:
        if wanted is None:
            return known
        names = list(wanted) if not isinstance(wanted, str) else [wanted]
        if not names or (unknown := [name for name in names if name not in known]):
            which = f"no task '{unknown[0]}'" if names else "no task was selected; it has"
            raise ExportError(f"'{self._exported.manifest.name}' has {which}: {', '.join(known)}.")
        return names

    def __repr__(self) -> str:
        manifest = self._exported.manifest
        return f"<exported kit {manifest.name}: {', '.join(self.tasks)}, {manifest.precision}>"
