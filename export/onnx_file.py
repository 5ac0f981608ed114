"""The model as one file that sherpa-onnx loads unchanged: normalisation inside, what a client must know as metadata.

Inputs ``x`` (N, T, 80) float32 and ``x_lens`` (N) int64; outputs ``log_probs`` (N, U, V) float32, V fixed
in the graph because clients read the vocabulary's size there, and ``log_probs_len`` (N) int64.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
#: Parts whose matrix products stay float32 in the 8-bit file.
FLOAT_SCOPES = ("/stem/", "/head/")


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
    """Write ``source`` with 8-bit weights in its blocks' matrix products to ``target``, whole or not at all.

    Unsigned weights: signed ones saturate on x86 without VNNI (outputs 15 times further off). The other way out, a
    reduced range, is 1.7 times as fast on x86 with VNNI, but its outputs are a quarter to a half further from
    float; per-channel scales gain nothing. Stem and head stay float: a fortieth of the weights, two thirds of the
    error (all measured on the presets). So do convolutions, whose depthwise filters lose most. Metadata stays.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    nodes = onnx.load(str(source), load_external_data=False).graph.node
    kept = [node.name for node in nodes if node.op_type == "MatMul" and node.name.startswith(FLOAT_SCOPES)]
    root = logging.getLogger()
    level = root.level
    # it advises to pre-process the graph, which makes no difference to constant weights
    root.setLevel(logging.ERROR)
    try:
        with _scratch(target) as beside:
            quantize_dynamic(
                source, beside, op_types_to_quantize=["MatMul"], weight_type=QuantType.QUInt8, nodes_to_exclude=kept
            )
            with replacing(target) as file:
                file.write(beside.read_bytes())
    finally:
        root.setLevel(level)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A place beside ``path`` for libraries that write to names only; gone afterwards."""
    beside = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        yield beside
    finally:
        beside.unlink(missing_ok=True)
