"""Decoding: whatever a file is called and whatever its header claims, its samples come out or one clear reason."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from core.manifest import Row
from core.pack import write_pack
from core.speech.audio import AudioError, decode, digest, from_int16, load, resample, to_int16
from core.speech.mp3 import with_true_length

SECONDS = 1.5


def tone(rate_hz: int = 16_000, seconds: float = SECONDS, channels: int = 1) -> np.ndarray:
    time = np.arange(round(rate_hz * seconds)) / rate_hz
    wave = (0.4 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)
    return wave if channels == 1 else np.stack([wave * (1 + c) / channels for c in range(channels)], axis=1)


def encoded(samples: np.ndarray, rate_hz: int = 16_000, form: str = "WAV", **options: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=form, **options)
    return file.getvalue()


def claiming(wav: bytes, size: int) -> bytes:
    at = wav.index(b"data") + 4
    return wav[:at] + size.to_bytes(4, "little") + wav[at + 4 :]


def without_count(mp3: bytes, count: int | None = None) -> bytes:
    """The stream with a wrong number in its Xing tag, or without the tag."""
    at = max(mp3.find(b"Xing"), mp3.find(b"Info"))
    if count is None:
        return mp3[:at] + bytes(4) + mp3[at + 4 :]
    return mp3[: at + 8] + count.to_bytes(4, "big") + mp3[at + 12 :]


def varying_mp3(rate_hz: int = 16_000) -> bytes:
    """Loud noise, then silence: frames of very different sizes."""
    noise = np.random.default_rng(0).normal(0, 0.3, rate_hz).astype(np.float32)
    sound = np.concatenate([noise, np.zeros(9 * rate_hz, dtype=np.float32)])
    return encoded(sound, rate_hz, "MP3", bitrate_mode="VARIABLE", compression_level=0.9)


WHOLE: dict[str, Callable[[], bytes]] = {
    "wav": lambda: encoded(tone()),
    "flac": lambda: encoded(tone(), form="FLAC"),
    "ogg": lambda: encoded(tone(), form="OGG"),
    "mp3": lambda: encoded(tone(), form="MP3"),
    "float_wav": lambda: encoded(tone(), subtype="FLOAT"),
    "eight_k": lambda: encoded(tone(8_000), 8_000),
    "stereo_44k": lambda: encoded(tone(44_100, channels=2), 44_100),
    "size_7fffffff": lambda: claiming(encoded(tone()), 0x7FFFFFFF),
    "size_ffffffff": lambda: claiming(encoded(tone()), 0xFFFFFFFF),
    "mp3_behind_id3": lambda: b"ID3\x04\0\0\0\0\0\x10" + bytes(16) + encoded(tone(), form="MP3"),
}

BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "empty_file"),
    "web_page": (lambda: b"<!DOCTYPE html><html><body>404</body></html>" * 10, "not_audio"),
    "text": (lambda: b"hello " * 500, "not_audio"),
    "noise": (lambda: np.random.default_rng(0).bytes(5000), "not_audio"),
    "half_flac": (lambda: encoded(tone(), form="FLAC")[:9000], "truncated"),
    "half_mp3": (lambda: varying_mp3()[:3000], "truncated"),
    "half_ogg": (lambda: encoded(tone(), form="OGG")[:4200], "truncated"),
    "header_alone": (lambda: encoded(tone())[:44], "truncated"),
    "not_a_number": (lambda: encoded(np.full(800, np.nan, np.float32), subtype="FLOAT"), "not_finite"),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_every_kind_of_file_comes_out_as_mono_at_16_khz(kind: str) -> None:
    samples = decode(WHOLE[kind]())

    assert samples.dtype == np.float32 and samples.ndim == 1
    assert len(samples) == pytest.approx(SECONDS * 16_000, abs=2)
    expected = 0.4 * (0.75 if kind == "stereo_44k" else 1.0)
    assert np.abs(samples[4000:-4000]).max() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("kind", BROKEN)
def test_every_kind_of_damage_has_its_reason(kind: str) -> None:
    data, reason = BROKEN[kind]

    with pytest.raises(AudioError) as caught:
        decode(data())

    assert caught.value.reason == reason


@pytest.mark.parametrize(("name", "kind"), [("a.wav", "ogg"), ("b.mp3", "flac"), ("c.raw", "mp3"), ("d", "wav")])
def test_content_decides_the_format_and_not_the_suffix(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(WHOLE[kind]())

    assert np.array_equal(decode(tmp_path / name), decode(WHOLE[kind]()))


def test_a_web_page_called_mp3_is_no_audio(tmp_path: Path) -> None:
    (tmp_path / "page.mp3").write_bytes(BROKEN["web_page"][0]())

    with pytest.raises(AudioError, match="a web page") as caught:
        decode(tmp_path / "page.mp3")

    assert caught.value.reason == "not_audio"


def test_a_missing_file_and_a_folder_are_missing(tmp_path: Path) -> None:
    for path in (tmp_path / "none.wav", tmp_path):
        with pytest.raises(AudioError) as caught:
            decode(path)
        assert caught.value.reason == "missing_file"


@pytest.mark.parametrize("cut", range(0, 6000, 97))
def test_an_mp3_cut_anywhere_decodes_or_says_why(cut: int) -> None:
    try:
        assert len(decode(encoded(tone(), form="MP3")[:cut])) > 0
    except AudioError as error:
        assert error.reason in ("empty_file", "not_audio", "truncated")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([b"", b"RIFF", b"fLaC", b"OggS", b"ID3\x04\0\0", b"\xff\xfb\x90\x00"]))
def test_no_bytes_are_a_crash(tail: bytes, head: bytes) -> None:
    with contextlib.suppress(AudioError):
        decode(head + tail)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_an_mp3_of_varying_bitrate_is_read_to_its_end_without_its_own_count(rate_hz: int) -> None:
    assert len(decode(without_count(varying_mp3(rate_hz)))) == pytest.approx(160_000, abs=3_500)


@pytest.mark.parametrize("count", [0, 10])
def test_a_count_that_is_too_small_loses_no_sound(count: int) -> None:
    mp3 = encoded(tone(), form="MP3")

    assert np.array_equal(decode(without_count(mp3, count)), decode(mp3))


def test_a_true_count_leaves_the_stream_as_it_is() -> None:
    mp3 = varying_mp3()
    stream = with_true_length(mp3)

    assert stream.data == mp3 and stream.frames == stream.promised > 0


def test_equal_samples_in_wav_and_flac_have_one_digest() -> None:
    noise = np.random.default_rng(1).integers(-9000, 9000, 8000).astype(np.int16)

    digests = {digest(decode(encoded(noise, form=form, subtype="PCM_16"))) for form in ("WAV", "FLAC")}

    assert len(digests) == 1
    assert digests != {digest(decode(encoded(noise[:-1], subtype="PCM_16")))}


@given(st.lists(st.integers(-32768, 32767), max_size=50))
def test_int16_comes_back_exactly(values: list[int]) -> None:
    pcm = np.array(values, dtype=np.int16)

    assert np.array_equal(to_int16(from_int16(pcm)), pcm)
    assert digest(from_int16(pcm)) == digest(pcm)


def test_what_is_louder_than_full_scale_is_clipped_and_never_wraps() -> None:
    assert to_int16(np.array([1.5, 1.0, -1.5], np.float32)).tolist() == [32767, 32767, -32768]


def test_resampling_keeps_a_tone_and_its_length() -> None:
    wave = resample(tone(8_000), 8_000, 16_000)

    assert wave.dtype == np.float32 and len(wave) == len(tone(16_000))
    assert np.abs(wave - tone(16_000))[500:-500].max() < 1e-3
    assert resample(wave, 16_000, 16_000) is wave


def row(audio: str, samples: int, offset: int | None) -> Row:
    return Row(
        id="0", name="a clip", audio=audio, offset=offset, digest="", duration=samples / 16_000, text="a",
        source="s", group="ordinary",
    )  # fmt: skip


def test_a_row_sounds_the_same_from_its_file_and_from_a_pack(tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_bytes(WHOLE["mp3"]())
    pcm = to_int16(decode(tmp_path / "a.mp3"))
    pack, offsets = write_pack(tmp_path / "packs", [pcm[:100], pcm, pcm[:50]])

    from_file = load(row("a.mp3", len(pcm), None), tmp_path)
    from_pack = load(row(f"packs/{pack.name}", len(pcm), offsets[1]), tmp_path)

    assert from_file.dtype == from_pack.dtype == np.float32
    assert np.array_equal(from_file, from_pack)


def test_a_row_whose_pack_is_gone_or_too_short_is_named(tmp_path: Path) -> None:
    pack, _ = write_pack(tmp_path, [np.ones(100, np.int16)])

    with pytest.raises(AudioError, match=r"a clip.*layl prepare") as gone:
        load(row("no.pcm16", 10, 0), tmp_path)
    with pytest.raises(AudioError, match=r"a clip.*sample 100") as short:
        load(row(pack.name, 60, 60), tmp_path)

    assert (gone.value.reason, short.value.reason) == ("missing_file", "truncated")


def test_an_audio_error_survives_the_way_home_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(AudioError("truncated", "a.wav: too short")))

    assert (error.reason, str(error)) == ("truncated", "a.wav: too short")
