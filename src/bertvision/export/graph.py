"""From an encoder and its heads to one ONNX graph, in float32 or int8. Heads run their own code on padded rows.

Inputs: `input_ids`, `mask` and, where the encoder has them, `type_ids` (row, slot); for pairs that are read as two
towers `first` and `second` (pair,), the rows of their texts; with several outputs `asked` (output,), which ones to
compute. Heads that are not asked are not run.
"""

import contextlib
import logging
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
        _quantise(model)
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


def _simplify(path: Path) -> Any:
    """Fold constants and remove what has no effect: once, here, and not whenever the graph is loaded. Nothing depends
    on the machine."""
    import onnx
    import onnxruntime

    simple = path.with_name("simple.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(simple)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    model = onnx.load(simple)
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


STEPS, WEIGHT_HIGHEST, HIGHEST, BLOCK = 255, 63, 127, 32
"""Steps between a token's lowest and highest value, and the largest values of a weight and of an embedding. Weights
take 7 bits: without special instructions, CPUs add two products in 16 bits, and larger ones would overflow there.
Embeddings have a scale for each `BLOCK`."""


def _quantise(model: Any) -> None:
    """The encoder's matrices and embeddings as int8. Matrices have a scale for each column. What they multiply is
    quantised as it comes, with a scale for each token: some tokens have far larger values than others, so one scale for
    all of them, as of onnxruntime's `quantize_dynamic`, changes several times as many answers (LOG.md). Heads stay in
    float32: they are small."""
    from onnx import numpy_helper

    graph = model.graph
    weights = {one.name: one for one in graph.initializer}
    tables = {name for name, one in weights.items() if one.data_type == 1 and len(one.dims) == 2}
    uses = Counter(name for node in graph.node for name in node.input)
    constants: dict[str, Any] = {"steps": np.float32(STEPS), "least": np.float32(1e-12)}
    constants |= {"last": np.array([-1]), "row": np.array([0, 0, -1])}
    graph.initializer.extend(numpy_helper.from_array(np.array(one), f"int8:{name}") for name, one in constants.items())
    nodes: list[Any] = []
    quantised: set[str] = set()
    for node in graph.node:
        # The encoder computes on (row, slot, hidden), which is a MatMul. Heads compute on (position, hidden): a Gemm.
        if node.op_type == "MatMul" and node.input[1] in tables and uses[node.input[1]] == 1:
            if node.input[0] not in quantised:
                nodes += _quantise_rows(node.input[0])
                quantised.add(node.input[0])
            nodes += _multiply(graph, weights[node.input[1]], node)
        elif node.op_type == "Gather" and node.input[0] in tables and uses[node.input[0]] == 1:
            nodes += _look_up(graph, weights[node.input[0]], node)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _quantise_rows(name: str) -> list[Any]:
    """The nodes that turn values (row, slot, value) into 8 bits, with a lowest value and a scale for each token."""
    from onnx import TensorProto, helper

    lowest, highest, scale = f"{name}:lowest", f"{name}:highest", f"{name}:scale"
    return [
        helper.make_node("ReduceMin", [name, "int8:last"], [lowest], keepdims=1),
        helper.make_node("ReduceMax", [name, "int8:last"], [highest], keepdims=1),
        helper.make_node("Sub", [highest, lowest], [f"{name}:range"]),
        helper.make_node("Max", [f"{name}:range", "int8:least"], [f"{name}:bounded"]),
        helper.make_node("Div", [f"{name}:bounded", "int8:steps"], [scale]),
        helper.make_node("Sub", [name, lowest], [f"{name}:shifted"]),
        helper.make_node("Div", [f"{name}:shifted", scale], [f"{name}:steps"]),
        helper.make_node("Round", [f"{name}:steps"], [f"{name}:rounded"]),
        helper.make_node("Cast", [f"{name}:rounded"], [f"{name}:int8"], to=TensorProto.UINT8),
    ]


def _multiply(graph: Any, weight: Any, node: Any) -> list[Any]:
    """The nodes of a product with a matrix (input, output) that becomes int8."""
    from onnx import TensorProto, helper, numpy_helper

    values = numpy_helper.to_array(weight)  # (input, output)
    scales = np.maximum(np.abs(values).max(0), 1e-12).astype(np.float32) / WEIGHT_HIGHEST  # (output,)
    steps = np.rint(values / scales).astype(np.int8)  # (input, output)
    given, whole, name = node.input[0], f"{node.output[0]}:whole", weight.name
    graph.initializer.remove(weight)
    graph.initializer.append(numpy_helper.from_array(steps, f"{name}:int8"))
    graph.initializer.append(numpy_helper.from_array(scales, f"{name}:scales"))
    sums = steps.sum(0, dtype=np.float32) * scales  # (output,) what a token's lowest value is multiplied with
    graph.initializer.append(numpy_helper.from_array(sums, f"{name}:sums"))
    return [
        helper.make_node("MatMulInteger", [f"{given}:int8", f"{name}:int8"], [whole]),
        helper.make_node("Cast", [whole], [f"{whole}:float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{whole}:float", f"{given}:scale"], [f"{whole}:by_token"]),
        helper.make_node("Mul", [f"{whole}:by_token", f"{name}:scales"], [f"{whole}:scaled"]),
        helper.make_node("Mul", [f"{given}:lowest", f"{name}:sums"], [f"{whole}:lowest"]),
        helper.make_node("Add", [f"{whole}:scaled", f"{whole}:lowest"], [node.output[0]]),
    ]


def _look_up(graph: Any, table: Any, node: Any) -> list[Any]:
    """The nodes of an embedding, whose table (row, hidden) becomes int8."""
    from onnx import TensorProto, helper, numpy_helper

    values = numpy_helper.to_array(table)  # (row, hidden)
    block = BLOCK if values.shape[1] % BLOCK == 0 else values.shape[1]
    blocks = values.reshape(len(values), -1, block)  # (row, block, value)
    scales = np.maximum(np.abs(blocks).max(2, keepdims=True), 1e-12).astype(np.float32) / HIGHEST  # (row, block, 1)
    name, out = table.name, node.output[0]
    graph.initializer.remove(table)
    graph.initializer.append(numpy_helper.from_array(np.rint(blocks / scales).astype(np.int8), f"{name}:int8"))
    graph.initializer.append(numpy_helper.from_array(scales, f"{name}:scales"))
    return [
        helper.make_node("Gather", [f"{name}:int8", node.input[1]], [f"{out}:int8"]),
        helper.make_node("Gather", [f"{name}:scales", node.input[1]], [f"{out}:scales"]),
        helper.make_node("Cast", [f"{out}:int8"], [f"{out}:float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{out}:float", f"{out}:scales"], [f"{out}:blocks"]),
        helper.make_node("Reshape", [f"{out}:blocks", "int8:row"], [out]),
    ]


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
