from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from core.speech.model import SpeechModel
from export.client import FLOAT_FILE, INT8_FILE, Recogniser
from export.onnx_file import export_float, quantise
from tests.export.conftest import VOCABULARY, tiny_model


@pytest.mark.parametrize("lengths", [(1,), (2,), (3,), (5,), (7,), (333,), (400,), (1237,), (50, 1, 7, 33)])
def test_the_file_equals_the_model_at_lengths_it_was_not_traced_with(
    lengths: tuple[int, ...], exported: Path, model: SpeechModel
) -> None:
    features = torch.randn(len(lengths), max(lengths), 80, generator=torch.Generator().manual_seed(3)) * 2 - 7
    frames = torch.tensor(lengths)
    with torch.no_grad():
        expected, expected_frames = model(features, frames)
    log_probs, out = Recogniser(exported, FLOAT_FILE).outputs(features.numpy(), frames.numpy())
    assert out.tolist() == expected_frames.tolist() and out.dtype == np.int64
    np.testing.assert_allclose(log_probs, expected, atol=1e-4)


def test_normalisation_by_the_clip_is_in_the_file(tmp_path: Path) -> None:
    model = tiny_model(normalisation="clip")
    export_float(model, VOCABULARY.symbols, {}, tmp_path / FLOAT_FILE)
    (tmp_path / "tokens.txt").write_text(VOCABULARY.tokens_text(), encoding="utf-8")
    features = torch.randn(4, 333, 80, generator=torch.Generator().manual_seed(3)) * 2 - 7
    frames = torch.tensor([333, 1, 97, 0])
    features[2, 97:] = 60.0
    with torch.no_grad():
        expected, expected_frames = model(features, frames)
    log_probs, out = Recogniser(tmp_path, FLOAT_FILE).outputs(features.numpy(), frames.numpy())
    assert out.tolist() == expected_frames.tolist()
    for mine, theirs, U in zip(expected, log_probs, expected_frames.tolist(), strict=True):
        np.testing.assert_allclose(theirs[:U], mine[:U], atol=1e-4)
    assert np.isfinite(log_probs).all()


@pytest.mark.parametrize("file", [FLOAT_FILE, INT8_FILE])
def test_a_clip_without_frames_gives_numbers_and_no_frames(file: str, exported: Path) -> None:
    features = np.zeros((2, 9, 80), dtype=np.float32)
    log_probs, frames = Recogniser(exported, file).outputs(features, np.array([9, 0]))
    assert frames.tolist() == [3, 0] and np.isfinite(log_probs).all()


@pytest.mark.parametrize("file", [FLOAT_FILE, INT8_FILE])
def test_both_files_tell_a_client_what_it_must_know(file: str, exported: Path) -> None:
    proto = onnx.load(str(exported / file))
    told = {entry.key: entry.value for entry in proto.metadata_props}
    assert told["model_type"] == "zipformer2_ctc" and told["blank_id"] == "0" and told["data_id"] == "abc"
    assert json.loads(told["vocab"]) == list(VOCABULARY.symbols) and told["step"] == "7"
    assert json.loads(told["features"])["high_freq_hz"] == -400.0
    width = proto.graph.output[0].type.tensor_type.shape.dim[2]
    assert width.dim_value == len(VOCABULARY)
    assert [i.name for i in proto.graph.input] == ["x", "x_lens"]
    assert [o.name for o in proto.graph.output] == ["log_probs", "log_probs_len"]


def test_eight_bits_round_weights_and_nothing_else(exported: Path) -> None:
    exact = onnx.load(str(exported / FLOAT_FILE)).graph
    rough = onnx.load(str(exported / INT8_FILE)).graph
    floats = {i.name: numpy_helper.to_array(i) for i in exact.initializer}
    kept = {i.name: numpy_helper.to_array(i) for i in rough.initializer}
    cast = {n.output[0]: kept[n.input[0]] for n in by_op(rough, "Cast") if n.input[0] in kept}
    widened = {n.output[0]: (cast[n.input[0]], kept[n.input[1]]) for n in by_op(rough, "Mul") if n.input[0] in cast}
    products = list(zip(by_op(exact, "MatMul"), by_op(rough, "MatMul"), strict=True))
    weighed = [(a.input[1], b.input[1]) for a, b in products if a.input[1] in floats]
    assert len(weighed) == len(widened) == 2 * 8 + 3
    for before, after in weighed:
        weight, (eighth, scale) = floats[before], widened[after]
        assert eighth.dtype == np.int8 and scale.shape == (weight.shape[1],)
        assert (np.abs(eighth * scale - weight) <= scale / 2 * 1.001).all()
        assert (np.abs(eighth).max(axis=0) == 127).all()
        assert before not in kept
    assert len(rough.node) == len(exact.node) + 2 * len(widened)


def test_an_engine_computes_in_float32_what_the_file_rounded(exported: Path, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "as_run.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(exported / INT8_FILE), options, providers=["CPUExecutionProvider"])
    as_run = onnx.load(options.optimized_model_filepath).graph
    told = {n.op_type for n in as_run.node}
    # nothing that makes 8 bits of activations, and nothing left to widen for each clip
    assert "MatMul" in told and not [op for op in told if "Quant" in op or "Integer" in op or "NBits" in op]
    assert onnx.TensorProto.INT8 not in {i.data_type for i in as_run.initializer}


def by_op(graph: onnx.GraphProto, op: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == op]


def test_a_weight_of_nothing_stays_nothing(tmp_path: Path) -> None:
    dead = tiny_model()
    with torch.no_grad():
        dead.head.weight[3] = 0
    export_float(dead, VOCABULARY.symbols, {}, tmp_path / FLOAT_FILE)
    quantise(tmp_path / FLOAT_FILE, tmp_path / INT8_FILE)
    (tmp_path / "tokens.txt").write_text(VOCABULARY.tokens_text(), encoding="utf-8")
    log_probs, _ = Recogniser(tmp_path, INT8_FILE).outputs(np.ones((1, 9, 80), np.float32), np.array([9]))
    assert np.isfinite(log_probs).all()


def test_eight_bits_hear_in_a_batch_what_they_hear_alone(exported: Path) -> None:
    features = np.random.default_rng(1).standard_normal((2, 400, 80)).astype(np.float32) * 2 - 7
    features[1, 99:] = 50.0
    recogniser = Recogniser(exported, INT8_FILE)
    together, _ = recogniser.outputs(features, np.array([400, 99]))
    alone, _ = recogniser.outputs(features[1:, :99], np.array([99]))
    np.testing.assert_allclose(together[1, :25], alone[0], atol=1e-4)


def test_eight_bits_stay_close(exported: Path) -> None:
    features = np.random.default_rng(1).standard_normal((1, 400, 80)).astype(np.float32) * 2 - 7
    frames = np.array([400])
    exact, _ = Recogniser(exported, FLOAT_FILE).outputs(features, frames)
    rough, _ = Recogniser(exported, INT8_FILE).outputs(features, frames)
    assert 0 < np.abs(exact - rough).max() < 0.15


def test_a_failed_quantisation_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "source.onnx").write_bytes(b"no graph")
    (tmp_path / "old.onnx").write_bytes(b"old")
    with pytest.raises(Exception):  # noqa: B017 whatever the parser throws
        quantise(tmp_path / "source.onnx", tmp_path / "old.onnx")
    assert (tmp_path / "old.onnx").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old.onnx", "source.onnx"]


def test_export_leaves_the_model_as_it_was(tmp_path: Path, model: SpeechModel) -> None:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    export_float(model, VOCABULARY.symbols, {}, tmp_path / "again.onnx")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_every_norm_is_written_so_that_old_engines_are_fast(exported: Path, model: SpeechModel) -> None:
    norms = sum(isinstance(module, torch.nn.LayerNorm) for module in model.modules())
    for file in (FLOAT_FILE, INT8_FILE):
        kinds = [node.op_type for node in onnx.load(str(exported / file)).graph.node]
        assert kinds.count("InstanceNormalization") == norms > 3
        assert "LayerNormalization" not in kinds
