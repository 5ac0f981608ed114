from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from core.pack import SUFFIX, map_pack, write_pack

CLIPS = st.lists(arrays(np.int16, st.integers(0, 20)), max_size=5)


@settings(max_examples=30)
@given(CLIPS)
def test_every_clip_comes_back_from_its_offset(tmp_path_factory, clips):
    folder = tmp_path_factory.mktemp("packs")
    path, offsets = write_pack(folder, clips)
    samples = map_pack(path)
    assert samples.dtype == np.dtype("<i2") and len(samples) == sum(map(len, clips)) and len(offsets) == len(clips)
    for clip, offset in zip(clips, offsets, strict=True):
        assert np.array_equal(samples[offset : offset + len(clip)], clip)
    assert [p.name for p in folder.iterdir()] == [path.name]


def test_a_pack_cannot_be_written_through_its_map(tmp_path):
    for clips in ([np.arange(4, dtype=np.int16)], []):
        assert not map_pack(write_pack(tmp_path, clips)[0]).flags.writeable


def test_the_name_is_the_content(tmp_path):
    one, two = np.arange(4, dtype=np.int16), np.arange(9, dtype=np.int16)
    first, offsets = write_pack(tmp_path, [one, two])
    same, other_offsets = write_pack(tmp_path, [np.concatenate([one, two])])
    different, _ = write_pack(tmp_path, [two, one])
    assert first == same != different
    assert (offsets, other_offsets) == ([0, 4], [0])
    assert first.suffix == SUFFIX and len(first.stem) == 32


def test_samples_are_little_endian_whatever_the_array_is(tmp_path):
    clip = np.array([1, -2, 300], dtype=np.int16)
    path, _ = write_pack(tmp_path, [clip])
    assert path.read_bytes() == b"\x01\x00\xfe\xff\x2c\x01"
    assert write_pack(tmp_path, [clip.astype(">i2")])[0] == path
    assert write_pack(tmp_path, [np.repeat(clip, 2)[::2]])[0] == path


def test_a_pack_that_is_there_is_left_alone_and_a_torn_one_is_written_again(tmp_path):
    clips = [np.arange(100, dtype=np.int16)]
    path, _ = write_pack(tmp_path, clips)
    os.utime(path, ns=(1, 1))
    write_pack(tmp_path, clips)
    assert path.stat().st_mtime_ns == 1
    path.write_bytes(path.read_bytes()[:50])
    write_pack(tmp_path, clips)
    assert np.array_equal(map_pack(path), clips[0])


def test_empty_clips_and_an_empty_pack_are_packs(tmp_path):
    nothing = np.zeros(0, dtype=np.int16)
    path, offsets = write_pack(tmp_path, [nothing, np.ones(2, dtype=np.int16), nothing])
    assert offsets == [0, 0, 2] and len(map_pack(path)) == 2
    path, offsets = write_pack(tmp_path, [])
    assert offsets == [] and len(map_pack(path)) == 0


@pytest.mark.parametrize("kind", [np.float32, np.int32, np.uint16])
def test_samples_of_another_kind_are_refused(tmp_path, kind):
    with pytest.raises(TypeError):
        write_pack(tmp_path, [np.zeros(3, dtype=kind)])
    assert list(tmp_path.iterdir()) == []


def test_a_pack_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        map_pack(tmp_path / f"nothing{SUFFIX}")
