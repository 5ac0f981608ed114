"""A model that spells its features: whatever a client computes from samples becomes the text it writes.

A weak model writes next to nothing, and then two clients agree whatever they compute; this one always writes.
N clips, T feature frames, U output frames, F filters.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from core.manifest import SAMPLE_RATE_HZ
from core.speech.features import FILTERS
from core.speech.text import BLANK, Vocabulary
from export.onnx_file import INPUTS, OPSET, OUTPUTS, SUBSAMPLING, metadata

#: One symbol a filter; any eighty characters in a row will do.
SYMBOLS = Vocabulary((BLANK, *(chr(0x4E00 + i) for i in range(FILTERS))))
#: A frame without a filter as loud as this is blank, so that another scale of the samples changes the text too.
QUIET = -1.0
SIGNAL_SECONDS = 20.0
STEP_SECONDS = 0.08


def signal() -> np.ndarray:
    """The same twenty seconds (S) every time: three tones in noise, with other pitches and levels every 80 ms."""
    rng = np.random.default_rng(1)
    step, count = round(STEP_SECONDS * SAMPLE_RATE_HZ), round(SIGNAL_SECONDS / STEP_SECONDS)
    pitches_Hz = rng.uniform(100, 7500, (count, 3)).repeat(step, axis=0)
    phases = 2 * np.pi * np.cumsum(pitches_Hz, axis=0) / SAMPLE_RATE_HZ
    level = np.exp(rng.uniform(np.log(0.003), np.log(0.3), count)).repeat(step)
    mixed = np.sin(phases).mean(axis=1) + 0.3 * rng.standard_normal(len(phases))
    return (level * mixed).clip(-1, 1).astype(np.float32)


def write_probe(path: Path) -> None:
    """Write an ONNX file that a client takes for a model, whose symbol is each output frame's loudest filter."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    constants = {
        "first": np.array([0], dtype=np.int64),
        "end": np.array([np.iinfo(np.int64).max], dtype=np.int64),
        "time": np.array([1], dtype=np.int64),
        "stride": np.array([SUBSAMPLING], dtype=np.int64),
        "round_up": np.array([SUBSAMPLING - 1], dtype=np.int64),
        "before": np.array([0, 0, 1, 0, 0, 0], dtype=np.int64),
        "quiet": np.array(QUIET, dtype=np.float32),
    }
    nodes = [
        helper.make_node("Slice", [INPUTS[0], "first", "end", "time", "stride"], ["kept"]),
        helper.make_node("Pad", ["kept", "before", "quiet"], ["levels"]),
        helper.make_node("LogSoftmax", ["levels"], [OUTPUTS[0]], axis=-1),
        helper.make_node("Add", [INPUTS[1], "round_up"], ["rounded"]),
        helper.make_node("Div", ["rounded", "stride"], [OUTPUTS[1]]),
    ]
    graph = helper.make_graph(
        nodes,
        "probe",
        [
            helper.make_tensor_value_info(INPUTS[0], TensorProto.FLOAT, ["N", "T", FILTERS]),
            helper.make_tensor_value_info(INPUTS[1], TensorProto.INT64, ["N"]),
        ],
        [
            helper.make_tensor_value_info(OUTPUTS[0], TensorProto.FLOAT, ["N", "U", len(SYMBOLS)]),
            helper.make_tensor_value_info(OUTPUTS[1], TensorProto.INT64, ["N"]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    proto.ir_version = 8  # the one of this opset; older clients refuse what the installed onnx writes by itself
    helper.set_model_props(proto, metadata(SYMBOLS.symbols, {}))
    onnx.checker.check_model(proto)
    path.write_bytes(proto.SerializeToString())
