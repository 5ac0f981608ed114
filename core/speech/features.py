"""The front end phones use too: Kaldi's log-mel filter bank, for a whole batch at once, on whichever device trains.

N clips, S samples, T frames of 10 ms, F = 80 filters. A mismatch between these features and the client's
(another upper frequency, another sample scale) doubles the error in the field and shows in no score taken
here, so the tests hold this module to kaldi-native-fbank within 1e-3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from core.manifest import SAMPLE_RATE_HZ

FILTERS = 80
SHIFT = SAMPLE_RATE_HZ // 100
WINDOW = SAMPLE_RATE_HZ // 40
FFT = 512
LOW_HZ = 20.0
HIGH_HZ = -400.0
PREEMPHASIS = 0.97
PIECE_FRAMES = 1024

#: Samples of the first frame that lie before the clip; frames are centred on their 10 ms (snip_edges false).
LEAD = WINDOW // 2 - SHIFT // 2
#: Samples after the clip's end that its last frame may reach.
TAIL = WINDOW // 2

#: What a client must know to compute the same features; goes into the exported file's metadata.
FEATURE_PARAMETERS: dict[str, Any] = {
    "kind": "kaldi_fbank",
    "sample_rate_hz": SAMPLE_RATE_HZ,
    "num_mel_bins": FILTERS,
    "frame_length_ms": 25,
    "frame_shift_ms": 10,
    "window_type": "povey",
    "preemphasis": PREEMPHASIS,
    "remove_dc_offset": True,
    "low_freq_hz": LOW_HZ,
    "high_freq_hz": HIGH_HZ,
    "dither": 0.0,
    "snip_edges": False,
    "use_energy": False,
    "sample_scale": 1.0,
}


def frames(samples: Any) -> Any:
    """How many frames a clip of ``samples`` samples has (int or integer tensor): a clip under 5 ms has none."""
    return (samples + SHIFT // 2) // SHIFT


def mel(hz: Any) -> Any:
    """Kaldi's mel scale (number or array of Hz)."""
    return 1127.0 * np.log1p(hz / 700.0)


def mel_bank() -> Tensor:
    """Kaldi's triangular filters, even in mel, (FFT // 2 + 1, F); the Nyquist bin has no weight.

    Written out here because torchaudio, which has the same matrix, takes seconds to import and the client
    needs nothing else of it.
    """

    low, high = mel(LOW_HZ), mel(SAMPLE_RATE_HZ / 2 + HIGH_HZ)
    step = (high - low) / (FILTERS + 1)
    left = low + step * torch.arange(FILTERS, dtype=torch.float64)
    bins = torch.from_numpy(mel(np.arange(FFT // 2 + 1) * (SAMPLE_RATE_HZ / FFT)))[:, None]
    bank = torch.minimum((bins - left) / step, (left + 2 * step - bins) / step).clamp_min(0.0)
    bank[-1] = 0.0
    return bank.float()


class FrontEnd(nn.Module):
    """Samples to log-mel features. No weights; its tables follow the module to a device, never into a checkpoint."""

    window: Tensor
    bank: Tensor

    def __init__(self) -> None:
        super().__init__()
        hann = torch.hann_window(WINDOW, periodic=False, dtype=torch.float64)
        self.register_buffer("window", hann.pow(0.85).float(), persistent=False)
        self.register_buffer("bank", mel_bank(), persistent=False)

    @torch.no_grad()
    def forward(self, audio_NS: Tensor, samples_N: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, T, 80) float32 and frames (N) int64 of audio (N, S) in [-1, 1] with ``samples_N`` samples each.

        Edges are reflected at each clip's own end, so a clip's features do not depend on its batch. Frames
        beyond a clip's own are zero. T follows S (no waiting for a GPU to say which clip is longest) and is at
        least 1, so that a batch of nothing still fits a model.
        """
        frames_N = frames(samples_N)
        T = max(1, frames(audio_NS.shape[1]))
        with torch.autocast(audio_NS.device.type, enabled=False):
            signal = _reflected(audio_NS.float(), samples_N, LEAD + T * SHIFT + WINDOW)
            features = self._log_mel(signal, T)
        inside = torch.arange(T, device=features.device)[None, :] < frames_N[:, None]
        return features * inside[:, :, None], frames_N

    def _log_mel(self, signal: Tensor, T: int) -> Tensor:
        # Removing a frame's mean and then pre-emphasising it equals pre-emphasising the signal once and taking
        # (1 - 0.97) x mean off, but for a frame's first sample, where the povey window is zero: one pass less
        # over data that overlap 2.5 times.
        emphasised = signal.clone()
        emphasised[:, 1:] -= PREEMPHASIS * signal[:, :-1]
        mean_NT1 = signal.unfold(1, WINDOW, SHIFT)[:, :T].mean(dim=2, keepdim=True)
        view = emphasised.unfold(1, WINDOW, SHIFT)[:, :T]
        # pieces that stay in a CPU's cache: twice as fast as 60 s at once
        step = max(1, PIECE_FRAMES // len(signal)) if signal.device.type == "cpu" else T
        pieces = zip(view.split(step, dim=1), mean_NT1.split(step, dim=1), strict=True)
        return torch.cat([self._piece(frame, mean) for frame, mean in pieces], dim=1)

    def _piece(self, frame_NTW: Tensor, mean_NT1: Tensor) -> Tensor:
        padded = frame_NTW.new_zeros(*frame_NTW.shape[:2], FFT)
        windowed = torch.sub(frame_NTW, mean_NT1, alpha=1 - PREEMPHASIS, out=padded[..., :WINDOW])
        windowed *= self.window
        power = torch.view_as_real(torch.fft.rfft(padded)).square_().sum(dim=-1)
        return (power @ self.bank).clamp_min_(torch.finfo(torch.float32).eps).log_()


def _reflected(audio_NS: Tensor, samples_N: Tensor, length: int) -> Tensor:
    """(N, length): each clip after LEAD samples, both of its ends mirrored as often as the window needs."""
    N, S = audio_NS.shape
    device = audio_NS.device
    signal = audio_NS.new_zeros(N, max(length, LEAD + S + TAIL))
    if S == 0:
        return signal[:, :length]
    signal[:, LEAD : LEAD + S] = audio_NS
    before = torch.arange(-LEAD, 0, device=device).expand(N, LEAD)
    signal[:, :LEAD] = audio_NS.gather(1, _mirrored(before, samples_N))
    after = samples_N[:, None] + torch.arange(TAIL, device=device)
    signal.scatter_(1, LEAD + after, audio_NS.gather(1, _mirrored(after, samples_N)))
    return signal[:, :length]


def _mirrored(index: Tensor, samples_N: Tensor) -> Tensor:
    """Where Kaldi reads a sample that lies outside a clip: ... 1 0 | 0 1 ... n-1 | n-1 n-2 ..., without end."""
    n = samples_N[:, None].clamp_min(1)
    place = torch.remainder(index, 2 * n)
    return torch.minimum(place, 2 * n - 1 - place)
