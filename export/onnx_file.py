"""The model as one file that sherpa-onnx loads unchanged: normalisation inside, what a client must know as metadata.

Inputs ``x`` (N, T, 80) float32 and ``x_lens`` (N) int64; outputs ``log_probs`` (N, U, V) float32, V fixed
in the graph because clients read the vocabulary's size there, and ``log_probs_len`` (N) int64.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from core.run_dir import TEMPORARY, replacing
from core.speech.features import FEATURE_PARAMETERS, FILTERS

INPUTS = ("x", "x_lens")
OUTPUTS = ("log_probs", "log_probs_len")
OPSET = 17
#: Length of the clip the graph is traced with; the tests hold it to every other length.
TRACED_FRAMES = 400
SUBSAMPLING = 4
#: The largest 8-bit weight; -128 is left out, so that a weight and its negative are rounded alike.
INT8_MOST = 127


def export_float(model: nn.Module, vocabulary: tuple[str, ...], facts: Mapping[str, Any], path: Path) -> None:
    """Write ``model`` in float32 to ``path``, whole or not at all; ``facts`` join the metadata."""
    import onnx

    model = model.eval()
    example = (torch.zeros(2, TRACED_FRAMES, FILTERS), torch.tensor([TRACED_FRAMES, TRACED_FRAMES - 99]))
    with _scratch(path) as beside, torch.no_grad(), warnings.catch_warnings():
        # the TorchScript exporter is named on purpose: exact at every length, and fifty times faster than its successor
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            example,
            beside,
            dynamo=False,
            opset_version=OPSET,
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_axes={
                "x": {0: "N", 1: "T"},
                "x_lens": {0: "N"},
                "log_probs": {0: "N", 1: "U"},
                "log_probs_len": {0: "N"},
            },
        )
        proto = onnx.load(str(beside))
    proto.graph.output[0].type.tensor_type.shape.dim[2].dim_value = len(vocabulary)
    _norms_by_instance(proto.graph)
    onnx.helper.set_model_props(proto, metadata(vocabulary, facts))
    onnx.checker.check_model(proto)
    with replacing(path) as file:
        file.write(proto.SerializeToString())


def metadata(vocabulary: tuple[str, ...], facts: Mapping[str, Any]) -> dict[str, str]:
    """What goes into the file: strings as they are, everything else as JSON."""
    told = {
        "model_type": "zipformer2_ctc",
        "vocab": list(vocabulary),
        "vocab_size": len(vocabulary),
        "blank_id": 0,
        "subsampling_factor": SUBSAMPLING,
        "features": FEATURE_PARAMETERS,
        **facts,
    }
    return {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in told.items()}


def quantise(source: Path, target: Path) -> None:
    """Write ``source`` with the weights of its matrix products in 8 bits to ``target``, whole or not at all.

    Each output channel has a scale of its own. An engine widens the weights once, when it loads the file, and then
    computes in float32. Eight-bit activations would be faster, but they round: what differs in the sixth decimal
    between two engines grows to another letter (decision 9 has the figures). Metadata stays.
    """
    import onnx

    proto = onnx.load(str(source), load_external_data=False)
    graph = proto.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    widened = {name: _widened(graph, weights[name]) for name in {node.input[1] for node in products}}
    for node in products:
        node.input[1] = widened[node.input[1]]
    for name in widened:
        graph.initializer.remove(weights[name])
    onnx.checker.check_model(proto)
    with replacing(target) as file:
        file.write(proto.SerializeToString())


def _norms_by_instance(graph: Any) -> None:
    """Write each LayerNormalization over D of (N, U, D) as InstanceNormalization with U channels, scale and shift.

    The same numbers, but where LayerNormalization is a plain loop (onnxruntime 1.28, which sherpa-onnx 2.0 brings) it
    takes a seventh of a clip's time, and this with scale and shift a fortieth.
    """
    from onnx import helper, numpy_helper

    normalised = [node for node in graph.node if node.op_type == "LayerNormalization"]
    one, zero = (numpy_helper.from_array(np.array([value], dtype=np.float32)) for value in (1.0, 0.0))
    nodes = list(graph.node)
    first = nodes.index(normalised[0])
    # every norm sees the same U: that of the stem's output
    nodes[first:first] = (
        helper.make_node("Shape", [normalised[0].input[0]], ["norm.U"], name="norm.U", start=1, end=2),
        helper.make_node("ConstantOfShape", ["norm.U"], ["norm.ones"], name="norm.ones", value=one),
        helper.make_node("ConstantOfShape", ["norm.U"], ["norm.zeros"], name="norm.zeros", value=zero),
    )
    for node in normalised:
        (x, scale, shift), (y,) = node.input, node.output
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        assert attributes.get("axis", -1) == -1, "an instance is a frame: D is the last axis"
        epsilon = attributes.get("epsilon", 1e-5)
        place = nodes.index(node)
        nodes[place : place + 1] = (
            helper.make_node(
                "InstanceNormalization",
                [x, "norm.ones", "norm.zeros"],
                [f"{y}.even"],
                name=f"{y}.even",
                epsilon=epsilon,
            ),
            helper.make_node("Mul", [f"{y}.even", scale], [f"{y}.scaled"], name=f"{y}.scaled"),
            helper.make_node("Add", [f"{y}.scaled", shift], [y], name=f"{y}.shifted"),
        )
    del graph.node[:]
    graph.node.extend(nodes)


def _widened(graph: Any, tensor: Any) -> str:
    """The name under which a weight (D, E) in 8 bits, with a scale for each of E, is float32 again."""
    from onnx import TensorProto, helper, numpy_helper

    weight, name = numpy_helper.to_array(tensor), tensor.name
    scale = np.maximum(np.abs(weight).max(axis=0) / INT8_MOST, np.finfo(np.float32).tiny).astype(np.float32)
    eighth = np.rint(weight / scale).astype(np.int8)
    graph.initializer.extend(
        (numpy_helper.from_array(eighth, f"{name}.int8"), numpy_helper.from_array(scale, f"{name}.scale"))
    )
    # not DequantizeLinear: onnxruntime fuses that with the product, into one of 8-bit activations
    cast = helper.make_node("Cast", [f"{name}.int8"], [f"{name}.cast"], name=f"{name}.cast", to=TensorProto.FLOAT)
    scaled = helper.make_node("Mul", [f"{name}.cast", f"{name}.scale"], [f"{name}.wide"], name=f"{name}.wide")
    graph.node.insert(0, scaled)
    graph.node.insert(0, cast)
    return f"{name}.wide"


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A place beside ``path`` for libraries that write to names only; gone afterwards."""
    beside = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        yield beside
    finally:
        beside.unlink(missing_ok=True)
