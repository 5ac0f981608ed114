from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from core.speech.model import SpeechModel
from export.client import FLOAT_FILE, INT8_FILE, Recogniser
from export.onnx_file import FLOAT_SCOPES, export_float, quantise
from tests.export.conftest import VOCABULARY


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


def test_eight_bits_stay_close_and_only_blocks_are_quantised(exported: Path) -> None:
    features = np.random.default_rng(1).standard_normal((1, 400, 80)).astype(np.float32) * 2 - 7
    frames = np.array([400])
    exact, _ = Recogniser(exported, FLOAT_FILE).outputs(features, frames)
    rough, _ = Recogniser(exported, INT8_FILE).outputs(features, frames)
    assert 0 < np.abs(exact - rough).max() < 0.25
    graph = onnx.load(str(exported / INT8_FILE)).graph
    quantised = [n.name for n in graph.node if n.op_type == "MatMulInteger"]
    assert len(quantised) == 2 * 8 and not any(n.startswith(FLOAT_SCOPES) for n in quantised)
    assert {i.data_type for i in graph.initializer if i.name.endswith("_quantized")} == {onnx.TensorProto.UINT8}


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
