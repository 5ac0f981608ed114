from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import DataError
from core.speech.config import SampleSource
from core.speech.text import letters
from prepare import sample
from prepare.clip import Clip, ShardedReader
from prepare.sample import SampleReader, a_third, as_at_home, chosen_verses, readers

SMALL = SampleSource(suras=(109, 112), voices=4)
speaks = pytest.mark.skipif(importlib.util.find_spec("espeakng_loader") is None, reason="espeakng-loader is missing")


def reader(config: SampleSource = SMALL, processes: int = 2) -> SampleReader:
    return SampleReader(config, Path("."), processes=processes)


def told(clips: list[Clip]) -> list[tuple[Clip, bytes]]:
    return [(replace(clip, pcm=None), clip.pcm.tobytes()) for clip in clips if clip.pcm is not None]


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    return list(reader().clips())


@speaks
@pytest.mark.process
def test_the_number_of_processes_changes_no_byte_and_no_order(clips):
    assert told(clips) == told(list(reader(processes=1).clips()))


@speaks
@pytest.mark.process
def test_every_voice_reads_every_verse_but_the_validating_one(clips):
    verses = {(verse.riwaya, verse.sura, verse.aya) for verse in chosen_verses(SMALL)}
    read: dict[str, set] = {}
    for clip in clips:
        read.setdefault(clip.reciter, set()).add((clip.riwaya, clip.sura, clip.aya))

    assert {name: len(places) for name, places in read.items()} == {
        "sample-01": 20,
        "sample-22": 8,
        "sample-23": 20,
        "sample-24": 20,
    }
    assert read["sample-01"] == read["sample-23"] == read["sample-24"] == verses > read["sample-22"]


@speaks
@pytest.mark.process
def test_a_clip_says_who_reads_what(clips):
    names = [clip.name for clip in clips]
    clip = clips[names.index("sample-24/warsh/112001")]

    assert len(set(names)) == len(names)
    assert (clip.reciter, clip.riwaya, clip.sura, clip.aya) == ("sample-24", "warsh", 112, 1)
    assert (clip.source, clip.group, clip.split, clip.shard) == ("sample", "ordinary", "test", "sample-24")
    assert letters(clip.text) == "قل هو الله أحد"


@speaks
@pytest.mark.process
def test_the_audio_is_16_khz_speech_that_grows_with_the_text(clips):
    for clip in clips:
        assert clip.pcm is not None and clip.pcm.dtype == np.int16 and clip.pcm.ndim == 1
        assert np.abs(clip.pcm).max() > 1000
        assert 0.03 < len(clip.pcm) / 16_000 / len(letters(clip.text)) < 0.3


@speaks
@pytest.mark.process
def test_no_two_clips_sound_alike_even_where_the_words_are_the_same(clips):
    texts = {letters(clip.text) for clip in clips if clip.reciter == "sample-01"}

    assert len(texts) < 20 - 5
    assert len({clip.pcm.tobytes() for clip in clips}) == len(clips)


@speaks
@pytest.mark.process
def test_an_ordinary_voice_is_changed_and_a_professional_one_is_not(monkeypatch, clips):
    monkeypatch.setattr(sample, "as_at_home", lambda samples, seed: np.zeros_like(samples))
    heard = {
        group: np.concatenate([c.pcm for c in reader().clips() if c.group == group])
        for group in ("professional", "ordinary")
    }

    assert not heard["ordinary"].any()
    assert heard["professional"].tolist() == np.concatenate([c.pcm for c in clips if c.group != "ordinary"]).tolist()


@speaks
@pytest.mark.process
def test_shards_in_a_row_are_the_clips(clips):
    shards = list(reader().shards())

    assert isinstance(reader(), ShardedReader)
    assert [shard.name for shard in shards] == [voice.name for voice in readers(4)]
    assert told([clip for shard in shards for clip in shard.clips()]) == told(clips)


@speaks
@pytest.mark.process
def test_whoever_stops_listening_leaves_no_process():
    before = {child.pid for child in psutil.Process().children()}
    stream = reader().clips()
    next(stream)
    during = {child.pid for child in psutil.Process().children()} - before
    stream.close()

    assert len(during) == 2
    assert not {child.pid for child in psutil.Process().children()} & during


@speaks
@pytest.mark.process
def test_all_voices_exist_and_sound_different():
    requests = [
        {"text": "قُلْ هُوَ", "voice": v.voice, "rate": v.rate, "pitch": v.pitch, "range": v.range} for v in readers(24)
    ]

    assert len({samples.tobytes() for samples in sample.speak(requests, 2)}) == 24


@speaks
@pytest.mark.process
def test_a_voice_that_does_not_exist_is_a_data_error():
    request = {"text": "قُلْ", "voice": "ar+nobody", "rate": 150, "pitch": 50, "range": 50}

    with pytest.raises(DataError, match=r"no voice 'ar\+nobody'.*pip install 'layl\[sample\]'"):
        list(sample.speak([request], 1))


@pytest.mark.process
@pytest.mark.parametrize("dies", ["import sys; sys.exit(3)", "import sys; print('ab'); sys.exit(3)"])
def test_a_speaker_that_dies_is_a_data_error(monkeypatch, dies):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    monkeypatch.setattr(sample, "_start_speaker", lambda: subprocess.Popen([sys.executable, "-c", dies], **pipes))

    with pytest.raises(DataError, match="ended with status 3"):
        list(sample.speak([{"text": "x" * 100_000}] * 9, 1))


@pytest.mark.process
def test_whoever_stops_listening_does_not_wait_for_a_speaker_that_hangs(monkeypatch):
    says_one = "import sys, time; sys.stdout.buffer.write(b'\\2\\0\\0\\0ab'); sys.stdout.flush(); time.sleep(20)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    monkeypatch.setattr(sample, "_start_speaker", lambda: subprocess.Popen([sys.executable, "-c", says_one], **pipes))
    stream = sample.speak([{"text": "x"}] * 9, 1)
    next(stream)
    began = time.monotonic()
    stream.close()

    assert time.monotonic() - began < 10


def test_a_missing_espeak_is_named_with_the_command_that_installs_it(monkeypatch):
    def version(package: str) -> str:
        if package == "espeakng-loader":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(sample, "version", version)

    for use in (reader().fingerprint, lambda: list(reader().clips())):
        with pytest.raises(DataError, match=r"espeakng-loader is not installed.*pip install 'layl\[sample\]'"):
            use()


@pytest.fixture
def versions(monkeypatch) -> dict[str, str]:
    found: dict[str, str] = {}
    monkeypatch.setattr(sample, "version", lambda package: found.setdefault(package, "1"))
    return found


@pytest.mark.parametrize("change", [{"voices": 5}, {"suras": (112,)}, {"readings": ("warsh",)}])
def test_the_fingerprint_follows_the_options(versions, change):
    assert reader(SMALL.model_copy(update=change)).fingerprint() != reader().fingerprint()
    assert reader(processes=1).fingerprint() == reader(processes=5).fingerprint()


@pytest.mark.parametrize("package", ["espeakng-loader", "quranic-phonemizer", "soxr", "numpy"])
def test_the_fingerprint_follows_the_packages(versions, package):
    before = reader().fingerprint()
    versions[package] = "2"

    assert reader().fingerprint() != before


def test_the_fingerprint_follows_the_recipe(versions, monkeypatch):
    before = reader().fingerprint()
    monkeypatch.setattr(sample, "RECIPE", sample.RECIPE + 1)

    assert reader().fingerprint() != before


def test_one_more_voice_leaves_the_other_shards_alone(versions):
    few, more = (
        {shard.name: shard.fingerprint for shard in reader(SMALL.model_copy(update={"voices": n})).shards()}
        for n in (6, 7)
    )

    assert few.items() < more.items()
    assert len(set(more.values())) == 7


@pytest.mark.parametrize("count", range(4, 25))
def test_the_same_three_voices_are_always_held_out(count):
    voices = readers(count)

    assert len({voice.name for voice in voices}) == len({voice.voice for voice in voices}) == count
    assert [(voice.split, voice.group) for voice in voices[-3:]] == [
        ("valid", "professional"),
        ("test", "professional"),
        ("test", "ordinary"),
    ]
    assert voices[-3:] == readers(4)[-3:]
    assert {voice.split for voice in voices[:-3]} == {"train"}


def test_about_a_third_of_the_voices_are_ordinary():
    shares = [np.mean([voice.group == "ordinary" for voice in readers(count)]) for count in range(6, 25)]

    assert 0.25 <= min(shares) <= max(shares) <= 0.4


def test_each_reading_keeps_its_own_numbers():
    chosen = {
        riwaya: [letters(v.text) for v in chosen_verses(SampleSource(readings=(riwaya,), suras=(1,)))]
        for riwaya in ("hafs", "warsh")
    }

    assert chosen["hafs"][:2] == ["بسم الله الرحمن الرحيم", "الحمد لله رب العلمين"]
    assert chosen["warsh"][0] == "الحمد لله رب العلمين"


def test_the_default_is_the_short_suras_of_both_readings():
    chosen = chosen_verses(SampleSource())

    assert len(chosen) == 164 + 165
    assert len({verse.place for verse in chosen}) == len(chosen)


def test_naming_a_sura_twice_reads_it_once():
    assert chosen_verses(SampleSource(suras=(112, 108, 112))) == chosen_verses(SampleSource(suras=(112, 108)))


def test_a_sura_that_does_not_exist_is_refused():
    with pytest.raises(DataError, match=r"suras: \[115\]"):
        chosen_verses(SampleSource(suras=(1, 115)))


def test_the_validating_third_is_spread_over_both_readings_and_never_empty():
    everything = chosen_verses(SampleSource())
    third = a_third(everything)

    assert [sum(v.riwaya == riwaya for v in third) for riwaya in ("hafs", "warsh")] == [55, 55]
    assert [verse for verse in everything if verse in third] == third
    assert len({verse.sura for verse in third}) > 15
    assert len(a_third(everything[:1])) == 1


TONE = (0.3 * np.sin(2 * np.pi * 500 * np.arange(16_000) / 16_000)).astype(np.float32)
HISS = (0.1 * np.random.default_rng(0).standard_normal(16_000)).astype(np.float32)


def kind_of(changed: np.ndarray, samples: np.ndarray) -> str:
    spectrum = np.abs(np.fft.rfft(changed)) ** 2
    if spectrum[4_200:].sum() < 1e-4 * spectrum.sum():
        return "band"
    ratio = changed[np.abs(samples) > 0.01] / samples[np.abs(samples) > 0.01]
    return "level" if np.abs(np.diff(ratio)).max() < 1e-3 else "noise"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), length=st.integers(1_600, 16_000))
def test_an_ordinary_recording_is_a_function_of_its_seed(seed, length):
    once, again = as_at_home(HISS[:length], seed), as_at_home(HISS[:length], seed)

    assert once.dtype == np.float32 and abs(len(once) - length) <= 1
    assert once.tobytes() == again.tobytes()
    assert once.tobytes() != HISS[:length].tobytes()


def test_ordinary_recordings_have_noise_a_narrow_band_or_a_wandering_level():
    kinds = [kind_of(as_at_home(HISS, seed), HISS) for seed in range(60)]

    assert all(kinds.count(kind) >= 10 for kind in ("noise", "band", "level"))


def test_noise_is_10_to_25_db_below_the_speech():
    ratios = []
    for seed in range(60):
        changed = as_at_home(HISS, seed)
        if kind_of(changed, HISS) == "noise":
            ratios.append(10 * np.log10(np.mean(HISS**2) / np.mean((changed - HISS) ** 2)))

    assert 9.9 <= min(ratios) < 14 and 21 < max(ratios) <= 25.1


def test_the_level_wanders_between_minus_20_and_plus_3_db():
    gains = []
    for seed in range(60):
        changed = as_at_home(HISS, seed)
        if kind_of(changed, HISS) == "level":
            gains += [20 * np.log10(changed[i] / HISS[i]) for i in (0, -1)]

    assert -20.1 <= min(gains) < -15 and 0 < max(gains) <= 3.1


def test_a_telephone_keeps_what_is_below_its_band():
    changed = as_at_home(TONE, next(s for s in range(60) if kind_of(as_at_home(HISS, s), HISS) == "band"))

    assert np.allclose(changed[1_000:-1_000], TONE[1_000:-1_000], atol=1e-3)
