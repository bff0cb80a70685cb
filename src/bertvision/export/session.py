"""Run an exported graph on windows of tokens, with onnxruntime on the CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from bertvision.data.packing import fill_batches
from bertvision.data.windows import Features
from bertvision.progress import Bar

MOST_TOKENS = 2048
"""Of a batch: about what fits into a CPU's cache."""


def open_session(graph: bytes | str, threads: int | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # done by the export
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 3
    # Threads that wait must not take a core from others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class Session:
    """A graph of `export.graph`."""

    def __init__(self, graph: bytes, outputs: Sequence[str], pad_id: int, threads: int | None = None) -> None:
        self.session, self.outputs, self.pad_id = open_session(graph, threads), list(outputs), pad_id
        self.inputs = {one.name for one in self.session.get_inputs()}

    def run(self, names: Sequence[str], features: Features, towers: bool = False, bar: Bar | None = None) -> list[Any]:
        """Some outputs (token or window, output) for all windows, as `snapshot.compute_outputs` returns them. With
        `towers`, the texts of pairs are read alone."""
        order = np.argsort(-features.lengths, kind="stable")  # (window,)
        found: list[Any] = [None] * len(names)
        for windows in fill_batches(features.lengths, order, tokens=MOST_TOKENS):
            feed, tokens = self._feed_pairs(features, windows) if towers else self._feed(features, windows)
            feed["asked"] = np.array([name in names for name in self.outputs])  # (output)
            for at, values in enumerate(self._run(names, feed)):
                on_tokens = values.ndim == 3
                if found[at] is None:
                    size = len(features.input_ids) if on_tokens else len(features)
                    found[at] = np.empty((size, values.shape[-1]), dtype=np.float32)  # (token or window, output)
                if on_tokens:
                    found[at][features.find_tokens(windows)] = values[tokens]
                else:
                    found[at][windows] = values
            if bar is not None:
                bar.advance(int(features.lengths[windows].sum()))
        return found

    def _run(self, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        return list(self.session.run(list(names), {name: feed[name] for name in self.inputs}))

    def _feed(self, features: Features, windows: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        """The inputs for some windows, and the mask (row, slot)."""
        lengths = features.lengths[windows]  # (row,)
        mask = np.arange(lengths.max()) < lengths[:, None]  # (row, slot)
        ids, types = np.full(mask.shape, self.pad_id), np.zeros(mask.shape, dtype=np.int64)
        tokens = features.find_tokens(windows)  # (token,)
        ids[mask], types[mask] = features.input_ids[tokens], features.type_ids[tokens]
        none = np.zeros(1, dtype=np.int64)
        return {"input_ids": ids, "mask": mask.astype(np.int64), "type_ids": types, "first": none, "second": none}, mask

    def _feed_pairs(self, features: Features, pairs: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        towers = features.towers.take(pairs)
        feed, mask = self._feed(towers.texts, np.arange(len(towers.texts)))
        return feed | {"first": towers.first, "second": towers.second}, mask
