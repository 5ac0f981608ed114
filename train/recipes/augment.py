"""What happens to a training clip's sound, from (seed, epoch, id) alone: speed, level, noise, rooms, phones."""

from __future__ import annotations

import functools

import numpy as np

from core.manifest import SAMPLE_RATE_HZ
from core.speech.audio import resample
from core.speech.config import AugmentSection

#: A telephone's band in Hz (ITU-T G.712).
PHONE_BAND_HZ = (300.0, 3400.0)
#: Reverberation times in seconds, from a furnished room to a mosque.
REVERB_SECONDS = (0.15, 0.9)
ROOMS = 32
#: Noise whose spectrum falls by so many times 10 dB a decade: 0 is white, 1 is pink, 2 is brown.
NOISE_SLOPES = (0.0, 0.5, 1.0, 1.5, 2.0)
#: Where it begins to fall: else most of brown noise would be a drift that neither ears nor features hear.
NOISE_FROM_HZ = 50.0
NOISE_SAMPLES = 1 << 19
#: The tap of a microphone's filter: +8 dB to -14 dB at low frequencies against high ones.
TILT = (-0.4, 0.7)


def augmented(samples: np.ndarray, config: AugmentSection, random: np.random.Generator) -> np.ndarray:
    """A clip (float32, one axis, 16 kHz) as another voice in another room may have sounded; never clipped."""
    if not len(samples):
        return samples
    sound = _speed(samples, random.uniform(*config.speed))
    if random.random() < config.reverb_share:
        sound = _reverb(sound, random)
    if random.random() < config.tilt_share:
        sound = _tilt(sound, random.uniform(*TILT))
    if random.random() < config.noise_share:
        sound = _noise(sound, random.uniform(*config.noise_snr_db), random)
    if random.random() < config.band_share:
        sound = _band(sound, random)
    sound = sound * 10 ** (random.uniform(*config.gain_db) / 20)
    peak = float(np.abs(sound).max(initial=0.0))
    return (sound / peak if peak > 1 else sound).astype(np.float32)


def _speed(sound: np.ndarray, factor: float) -> np.ndarray:
    if len(sound) < 2 or factor == 1.0:
        return sound
    # played faster: as if it had been recorded at a higher rate; the voice moves with it
    return resample(sound, SAMPLE_RATE_HZ * factor, SAMPLE_RATE_HZ)


def _tilt(sound: np.ndarray, tap: float) -> np.ndarray:
    """Another microphone: a first-order filter, duller below 0, sharper above, that keeps the level."""
    tilted = sound.copy()
    tilted[1:] -= tap * sound[:-1]
    return tilted * (_level(sound) / _level(tilted))


def _level(sound: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(sound, dtype=np.float64)) + 1e-12))


def _noise(sound: np.ndarray, snr_db: float, random: np.random.Generator) -> np.ndarray:
    table = _noises()
    colour, start = int(random.integers(len(table))), int(random.integers(table.shape[1]))
    noise = np.take(table[colour], np.arange(start, start + len(sound)), mode="wrap")
    return sound + noise * np.float32(_level(sound) * 10 ** (-snr_db / 20))


@functools.lru_cache(maxsize=1)
def _noises() -> np.ndarray:
    """(colours, samples) noise of unit power, white to brown: made once, since making it costs more than training."""
    random = np.random.default_rng(0)
    spectrum = np.fft.rfft(random.standard_normal((len(NOISE_SLOPES), NOISE_SAMPLES)))
    frequency = np.maximum(np.arange(spectrum.shape[1]), NOISE_FROM_HZ * NOISE_SAMPLES / SAMPLE_RATE_HZ)
    noise = np.fft.irfft(spectrum * frequency ** (-np.array(NOISE_SLOPES)[:, None] / 2), NOISE_SAMPLES)
    return (noise / noise.std(axis=1, keepdims=True)).astype(np.float32)


def _reverb(sound: np.ndarray, random: np.random.Generator) -> np.ndarray:
    import torch
    from torchaudio.functional import fftconvolve

    room = _rooms()[int(random.integers(ROOMS))]
    # a transform of a length with large prime factors takes ten times as long
    padded = np.zeros(_smooth_length(len(sound) + len(room) - 1) - len(room) + 1, dtype=np.float32)
    padded[: len(sound)] = sound
    return fftconvolve(torch.from_numpy(padded), torch.from_numpy(room)).numpy()[: len(sound)]


@functools.lru_cache(maxsize=1)
def _rooms() -> tuple[np.ndarray, ...]:
    """Impulse responses: the direct sound, then noise that has fallen by 60 dB after the room's reverberation time."""
    random = np.random.default_rng(1)
    rooms = []
    for seconds in np.geomspace(*REVERB_SECONDS, ROOMS):
        time = np.arange(int(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
        tail = random.standard_normal(len(time)) * 10 ** (-3 * time / seconds)
        room = tail * (random.uniform(0.05, 0.3) / np.sqrt(np.sum(np.square(tail))))
        room[0] = 1.0
        rooms.append(room.astype(np.float32))
    return tuple(rooms)


def _smooth_length(least: int) -> int:
    """The smallest 2^a, 3 x 2^a or 5 x 2^a that is not below ``least``."""
    return min(factor << max(0, (-(-least // factor) - 1).bit_length()) for factor in (1, 3, 5))


def _band(sound: np.ndarray, random: np.random.Generator) -> np.ndarray:
    import torch
    from torchaudio.functional import highpass_biquad, lowpass_biquad

    low, high = PHONE_BAND_HZ
    # torchaudio's filters cut what passes full scale
    room = np.float32(4 * max(float(np.abs(sound).max()), 1e-9))
    wave = torch.from_numpy(np.ascontiguousarray(sound / room, dtype=np.float32))
    wave = highpass_biquad(wave, SAMPLE_RATE_HZ, low * random.uniform(0.5, 1.2))
    return lowpass_biquad(wave, SAMPLE_RATE_HZ, high * random.uniform(0.9, 1.6)).numpy() * room
