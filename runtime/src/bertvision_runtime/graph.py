"""The graph of an export: an encoder and all heads, run by onnxruntime on rows of tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from bertvision_runtime.folder import ExportError, Manifest
from bertvision_runtime.texts import Window

Array = npt.NDArray[Any]
MOST_SLOTS, MOST_ROWS = 4096, 64
"""Of a batch, with padding."""


class Graph:
    def __init__(self, manifest: Manifest, data: bytes, threads: int | None) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # done by the export
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3
        # Threads that wait must not take a core from others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises many types
            why = str(error).splitlines()[0][:200]
            raise ExportError(
                f"model.onnx of '{manifest.name}' can't be loaded: {why}. Export the model again."
            ) from None
        self.manifest = manifest
        self.outputs = [name for task in manifest.tasks.values() for name in task.outputs]
        known = {one.name for one in self.session.get_outputs()}
        if missing := set(self.outputs) - known:
            raise ExportError(
                f"model.onnx of '{manifest.name}' has no output '{missing.pop()}': export the model again."
            )
        self.inputs = {one.name for one in self.session.get_inputs()}

    def run(self, windows: Sequence[Window], names: Sequence[str], pairs: Array | None = None) -> list[Array]:
        """Some outputs for a batch: (row, slot, 2) for spans, else (row, output). With `pairs` (pair, 2), each the
        index of two windows, (pair, output)."""
        longest = max(len(window.ids) for window in windows)
        most = self.manifest.max_tokens
        if most is not None and longest > most:
            raise ExportError(f"a text has {longest} tokens, but the encoder of '{self.manifest.name}' takes {most}.")
        shape = len(windows), longest
        feed = {"input_ids": np.full(shape, self.manifest.pad_id), "mask": np.zeros(shape, dtype=np.int64)}
        feed["type_ids"] = np.zeros(shape, dtype=np.int64)
        for row, window in enumerate(windows):
            size = len(window.ids)
            feed["input_ids"][row, :size], feed["type_ids"][row, :size] = window.ids, window.types
            feed["mask"][row, :size] = 1
        one = np.zeros((1, 2), dtype=np.int64) if pairs is None else pairs  # (pair, 2)
        feed["first"], feed["second"] = np.ascontiguousarray(one[:, 0]), np.ascontiguousarray(one[:, 1])
        feed["asked"] = np.array([name in names for name in self.outputs])  # (output)
        found: list[Array] = self.session.run(list(names), {key: feed[key] for key in self.inputs})
        for output in found:
            if not np.isfinite(output).all():
                raise ExportError(f"the graph of '{self.manifest.name}' gives values that are NaN or infinite.")
        return found

    def run_all(self, windows: Sequence[Window], names: Sequence[str]) -> dict[str, list[Array]]:
        """Output → its values for each window: (token, 2) for spans, else (output,)."""
        found: dict[str, list[Any]] = {name: [None] * len(windows) for name in names}
        for rows in batches([len(window.ids) for window in windows]):
            some = [windows[row] for row in rows]
            for name, values in zip(names, self.run(some, names), strict=True):
                for row, window, value in zip(rows, some, values, strict=True):
                    found[name][row] = value[: len(window.ids)] if value.ndim == 2 else value
        return found

    def run_pairs(self, windows: Sequence[Window], pairs: Array, names: Sequence[str]) -> dict[str, list[Array]]:
        """Output → its values (output,) for each pair of windows (pair, 2), which are read alone."""
        found: dict[str, list[Any]] = {name: [None] * len(pairs) for name in names}
        lengths = np.array([len(window.ids) for window in windows])  # (window)
        for rows in batches(lengths[pairs].sum(1).tolist()):
            needed, places = np.unique(pairs[rows], return_inverse=True)
            values = self.run([windows[at] for at in needed], names, places.reshape(-1, 2).astype(np.int64))
            for name, one in zip(names, values, strict=True):
                for row, value in zip(rows, one, strict=True):
                    found[name][row] = value
        return found


def batches(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of similar length together, the longest first."""
    found: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        longest = lengths[found[-1][0]] if found else 0
        full = not found or len(found[-1]) == MOST_ROWS or (len(found[-1]) + 1) * longest > MOST_SLOTS
        # A call costs about as much as padding of a sixteenth of a batch.
        wasteful = bool(found) and 8 * lengths[row] < 7 * longest and len(found[-1]) * longest > MOST_SLOTS // 16
        if full or wasteful:
            found.append([])
        found[-1].append(row)
    return found
