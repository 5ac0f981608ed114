"""What happens to a training clip's sound, from (seed, epoch, id) alone: speed, level, noise, rooms, phones, masks."""

from __future__ import annotations

import numpy as np

from core.manifest import SAMPLE_RATE_HZ
from core.speech.audio import resample
from core.speech.config import AugmentSection, SpecAugmentSection

#: A telephone's band in Hz (ITU-T G.712).
PHONE_BAND_HZ = (300.0, 3400.0)
#: Reverberation times in seconds, from a furnished room to a mosque.
REVERB_SECONDS = (0.15, 0.9)


def augmented(samples: np.ndarray, config: AugmentSection, random: np.random.Generator) -> np.ndarray:
    """A clip (float32, one axis, 16 kHz) as another voice in another room may have sounded; never empty or clipped."""
    sound = _speed(samples, random.uniform(*config.speed))
    if random.random() < config.reverb_share:
        sound = _reverb(sound, random)
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


def _noise(sound: np.ndarray, snr_db: float, random: np.random.Generator) -> np.ndarray:
    noise = _coloured(len(sound), random.uniform(0.0, 1.0), random)
    level = np.sqrt(np.mean(np.square(sound, dtype=np.float64)) + 1e-12)
    return sound + noise * (level * 10 ** (-snr_db / 20))


def _coloured(count: int, slope: float, random: np.random.Generator) -> np.ndarray:
    """Noise of unit power whose spectrum falls by ``slope`` x 10 dB a decade: 0 is white, 1 is pink."""
    white = random.standard_normal(count).astype(np.float32)
    if slope == 0.0 or count < 2:
        return white
    spectrum = np.fft.rfft(white)
    frequency = np.arange(1, len(spectrum) + 1, dtype=np.float32)
    noise = np.fft.irfft(spectrum * frequency ** (-slope / 2), count).astype(np.float32)
    return noise / max(float(noise.std()), 1e-9)


def _reverb(sound: np.ndarray, random: np.random.Generator) -> np.ndarray:
    import torch
    from torchaudio.functional import fftconvolve

    seconds = random.uniform(*REVERB_SECONDS)
    time = np.arange(int(seconds * SAMPLE_RATE_HZ), dtype=np.float32) / SAMPLE_RATE_HZ
    tail = random.standard_normal(len(time)).astype(np.float32) * 10 ** (-3 * time / seconds)
    room = tail * (random.uniform(0.05, 0.3) / max(float(np.sqrt(np.sum(np.square(tail)))), 1e-9))
    room[0] = 1.0
    wet = fftconvolve(torch.from_numpy(np.ascontiguousarray(sound)), torch.from_numpy(room)).numpy()
    return wet[: len(sound)]


def _band(sound: np.ndarray, random: np.random.Generator) -> np.ndarray:
    import torch
    from torchaudio.functional import highpass_biquad, lowpass_biquad

    low, high = PHONE_BAND_HZ
    wave = torch.from_numpy(np.ascontiguousarray(sound, dtype=np.float32))
    wave = highpass_biquad(wave, SAMPLE_RATE_HZ, low * random.uniform(0.5, 1.2))
    return lowpass_biquad(wave, SAMPLE_RATE_HZ, high * random.uniform(0.9, 1.6)).numpy()


def masks(frames: int, filters: int, config: SpecAugmentSection, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Which frames (T,) and which filters (F,) of a clip are hidden; time masks never hide more than their share of it."""
    time = np.zeros(frames, dtype=bool)
    left = int(frames * config.max_time_share)
    for _ in range(config.time_masks):
        width = min(int(random.integers(0, config.time_width + 1)), left)
        start = int(random.integers(0, frames - width + 1))
        time[start : start + width] = True
        left -= width
    frequency = np.zeros(filters, dtype=bool)
    for _ in range(config.freq_masks):
        width = int(random.integers(0, min(config.freq_width, filters) + 1))
        start = int(random.integers(0, filters - width + 1))
        frequency[start : start + width] = True
    return time, frequency
