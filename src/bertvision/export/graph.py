"""From an encoder and its heads to one ONNX graph, in float32 or int8. Heads run their own code on padded rows.

Inputs: `input_ids`, `mask` and, where the encoder has them, `type_ids` (row, slot); for pairs that are read as two
towers `first` and `second` (pair,), the rows of their texts; with several outputs `asked` (output,), which ones to
compute. Heads that are not asked are not run.
"""

import contextlib
import logging
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.encoder.encoder import Encoder
from bertvision.encoder.padded import PaddedEncoder
from bertvision.errors import UserError

MOST_BYTES = 2_000_000_000
"""Of an ONNX file: a message of Protocol Buffers has at most 2 GB."""
OPSET = 20


class Whole(nn.Module):
    """An encoder with all heads."""

    def __init__(self, encoder: Encoder, heads: Mapping[str, nn.Module], towers: frozenset[str]) -> None:
        super().__init__()
        self.encoder, self.heads = PaddedEncoder(encoder), nn.ModuleList(heads.values())
        self.are_towers = [name in towers for name in heads]

    def forward(
        self, input_ids: Tensor, mask: Tensor, type_ids: Tensor, first: Tensor, second: Tensor
    ) -> tuple[Tensor, ...]:
        states = self.encoder(input_ids, mask, type_ids)
        found = []
        for head, is_tower in zip(self.heads, self.are_towers, strict=True):
            given = states
            if is_tower:
                given, given.second = states.rows(first), states.rows(second)
            output = head(given).float()  # (slot, pair or row, output)
            found.append(output.unflatten(0, mask.shape) if _is_on_tokens(head) else output)
        return tuple(found)


def _is_on_tokens(head: Any) -> bool:
    kind = head.target.kind if hasattr(head, "target") else head.kind
    return bool(kind.position == "token")


def build_graph(encoder: Encoder, heads: Mapping[str, nn.Module], towers: frozenset[str], int8: bool) -> bytes:
    """The ONNX graph of an encoder and its heads, by the names of their outputs."""
    weights = [*encoder.model.parameters(), *(weight for head in heads.values() for weight in head.parameters())]
    if 4 * sum(weight.numel() for weight in weights) > MOST_BYTES:
        raise UserError(f"'{encoder.name}' is too large: a graph can have at most {MOST_BYTES / 1e9:g} GB of weights.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        _trace(Whole(encoder, heads, towers).eval(), list(heads), path)
        model = _simplify(path)
    if int8:
        model = _quantise(model)
    if len(heads) > 1:
        _make_optional(model)
    data: bytes = model.SerializeToString()
    return data


# ---------------------------------------------------------------------- torch to ONNX


def _trace(whole: Whole, names: Sequence[str], path: Path) -> None:
    device = whole.encoder.model.device
    ids = torch.ones(3, 5, dtype=torch.long, device=device)  # (row, slot)
    mask = torch.tensor([[1] * 5, [1] * 4 + [0], [1] * 3 + [0] * 2], device=device)  # (row, slot)
    pair = torch.tensor([0, 1], device=device)  # (pair,)
    both = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    pairs = {0: torch.export.Dim.DYNAMIC}
    shapes = {"input_ids": both, "mask": both, "type_ids": both, "first": pairs, "second": pairs}
    try:
        with _quiet(), torch.no_grad():
            program: Any = torch.onnx.export(
                whole,
                (ids, mask, torch.zeros_like(ids), pair, 1 - pair),
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=list(shapes),
                output_names=list(names),
                opset_version=OPSET,
                optimize=False,  # onnxruntime does that, in a tenth of the time
                verbose=False,
            )
            program.save(path)
    except UserError:
        raise
    except Exception as error:  # torch and onnxscript raise many types
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        kinds = ", ".join(sorted({type(head).__name__ for head in whole.heads}))
        raise UserError(
            f"this model can't be exported: torch has no ONNX form of a part of its encoder or head ({kinds}: {why}). "
            "Choose another head with --head."
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the messages that are for those who work on the exporter."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root", "")]
    before = [one.level for one in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in loggers:
            one.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for one, level in zip(loggers, before, strict=True):
                one.setLevel(level)


def _optimise(path: Path, fuse: bool) -> Any:
    """Fold constants, remove what has no effect and, with `fuse`, join the steps of int8 products: once, here, and not
    whenever the graph is loaded. Nothing depends on the machine."""
    import onnx
    import onnxruntime

    simple, levels = path.with_name("optimised.onnx"), onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED if fuse else levels.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(simple)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return onnx.load(simple)


def _simplify(path: Path) -> Any:
    model = _optimise(path, fuse=False)
    graph = model.graph
    del graph.value_info[:]  # a quantised graph has other types
    used = {name for node in graph.node for name in node.input}
    for index in reversed(range(len(graph.input))):
        if graph.input[index].name not in used:  # no towers, or no types
            del graph.input[index]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")  # an output that was not asked is empty
    return model


# ---------------------------------------------------------------------- int8


def _quantise(model: Any) -> Any:
    """The encoder's matrices and embeddings as int8. Embeddings have a scale for each row, matrices for each column,
    and what a matrix multiplies is quantised as it comes. Heads stay in float32: they are small, and lose most."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    _quantise_embeddings(model)
    constant = {one.name for one in model.graph.initializer}
    # The encoder computes on (row, slot, hidden), which is a MatMul. Heads compute on (position, hidden): a Gemm.
    own = [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in constant]
    logger = logging.getLogger()
    level = logger.level
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "int8.onnx")
        try:
            logger.setLevel(logging.ERROR)  # it advises to simplify the graph first, which has been done
            quantize_dynamic(
                model, path, per_channel=True, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"],
                nodes_to_quantize=own,
            )  # fmt: skip
        finally:
            logger.setLevel(level)
        return _optimise(Path(path), fuse=True)


def _quantise_embeddings(model: Any) -> None:
    import numpy as np
    from onnx import helper, numpy_helper

    graph = model.graph
    tables = {one.name: one for one in graph.initializer if one.data_type == 1 and len(one.dims) == 2}
    uses = Counter(name for node in graph.node for name in node.input)
    nodes = []
    for node in graph.node:
        table = tables.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None or uses[table.name] > 1 or any(one.name == "axis" and one.i for one in node.attribute):
            nodes.append(node)
            continue
        values = numpy_helper.to_array(table)  # (row, hidden)
        scales = np.maximum(np.abs(values).max(1, keepdims=True), 1e-12).astype(np.float32) / 127  # (row, 1)
        name = table.name
        graph.initializer.remove(table)
        graph.initializer.append(numpy_helper.from_array(np.rint(values / scales).astype(np.int8), f"{name}_int8"))
        graph.initializer.append(numpy_helper.from_array(scales, f"{name}_scales"))
        picked, scale, cast = (f"{node.output[0]}_{part}" for part in ("int8", "scale", "float"))
        nodes += [
            helper.make_node("Gather", [f"{name}_int8", node.input[1]], [picked]),
            helper.make_node("Gather", [f"{name}_scales", node.input[1]], [scale]),
            helper.make_node("Cast", [picked], [cast], to=1),
            helper.make_node("Mul", [cast, scale], [node.output[0]]),
        ]
    del graph.node[:]
    graph.node.extend(nodes)


# ---------------------------------------------------------------------- heads that are not asked


def _make_optional(model: Any) -> None:
    """Put what only one output needs into a branch that runs if the output is asked."""
    from onnx import TensorProto, helper

    graph = model.graph
    needed = {output.name: _ancestors(graph.node, output.name) for output in graph.output}
    uses = Counter(index for some in needed.values() for index in some)
    nodes = [node for index, node in enumerate(graph.node) if uses[index] > 1]
    for number, output in enumerate(graph.output):
        own = [node for index, node in enumerate(graph.node) if index in needed[output.name] and uses[index] == 1]
        if not own:
            continue
        name, inner, empty = output.name, f"{output.name}:inner", f"{output.name}:empty"
        for node in own:
            node.output[:] = [inner if one == name else one for one in node.output]
        form = helper.make_tensor_value_info(inner, TensorProto.FLOAT, None)
        none = helper.make_tensor_value_info(empty, TensorProto.FLOAT, None)
        nothing = helper.make_node("Constant", [], [empty], value=helper.make_tensor(empty, TensorProto.FLOAT, [0], []))
        graph.initializer.append(helper.make_tensor(f"{name}:number", TensorProto.INT64, [], [number]))
        nodes.append(helper.make_node("Gather", ["asked", f"{name}:number"], [f"{name}:asked"]))
        nodes.append(
            helper.make_node(
                "If", [f"{name}:asked"], [name],
                then_branch=helper.make_graph(own, f"{name}:then", [], [form]),
                else_branch=helper.make_graph([nothing], f"{name}:else", [], [none]),
            )
        )  # fmt: skip
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info("asked", TensorProto.BOOL, [len(graph.output)]))


def _ancestors(nodes: Sequence[Any], output: str) -> set[int]:
    """The indices of the nodes that an output needs."""
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    found: set[int] = set()
    waiting = [output]
    while waiting:
        index = maker.get(waiting.pop())
        if index is not None and index not in found:
            found.add(index)
            waiting += nodes[index].input
    return found
