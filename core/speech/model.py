"""A conformer written for export: plain masked attention, Linear pointwise convolutions, no state that training moves.

N clips, T feature frames (10 ms), U output frames (40 ms), F filters, D = width, H heads, V symbols.
Whatever stands beyond a clip's own frames is masked again after every operation that mixes frames, so a
clip's result does not depend on what it is batched with, and the exported graph equals the trained model.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.speech.config import ModelSection
from core.speech.features import FILTERS

#: Score of a frame that does not exist: exp of it is exactly 0 in every precision, and a clip of no frames
#: at all still gives numbers where -inf would give NaN.
ABSENT = -1e4
ROTARY_BASE = 10_000.0
#: What a filter's power is at least (Kaldi's floor), and so that of a clip without frames.
LEAST_POWER = torch.finfo(torch.float32).eps


def out_frames(frames: Any) -> Any:
    """Output frames of ``frames`` feature frames (int or integer tensor): ceil(ceil(frames / 2) / 2)."""
    return ((frames + 1) // 2 + 1) // 2


def parameters_m(model: nn.Module) -> float:
    """Trained numbers in millions."""
    return sum(p.numel() for p in model.parameters()) / 1e6


def mask_of(frames_N: Tensor, T: Any) -> Tensor:
    """(N, T) bool: which frames are a clip's own."""
    return torch.arange(T, device=frames_N.device)[None, :] < frames_N[:, None]


class Dropout(nn.Module):
    """Zeroes a share of the numbers while training and scales up the rest, so that their mean stays.

    On a CPU the share is a whole number of 256ths, at least one: eight random bytes for the price of one draw, where
    torch's own takes a draw for each number and a tenth of a small model's step.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.share)
        dropped = max(1, round(256 * self.share))
        draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        kept = (draws.view(torch.uint8)[: x.numel()] >= dropped).view(x.shape)
        return x * kept.to(x.dtype).mul_(256 / (256 - dropped))


class Stem(nn.Module):
    """100 to 25 frames a second: two strided 3 x 3 convolutions over time and filters, the second one separable."""

    def __init__(self, channels: int, width: int, dropout: float) -> None:
        super().__init__()
        # channels last from the first weight on: the depthwise convolution's backward is four times as fast on CPU
        self.first = nn.Conv2d(1, channels, 3, stride=2, padding=1).to(memory_format=torch.channels_last)
        self.second = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels)
        self.pointwise = nn.Linear(channels, channels)
        self.out = nn.Linear(channels * (FILTERS // 4), width)
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, features_NTF: Tensor, frames_N: Tensor) -> tuple[Tensor, Tensor]:
        x = features_NTF * mask_of(frames_N, features_NTF.shape[1])[:, :, None]
        x = F.silu(self.first(x[:, None]))
        half_N = (frames_N + 1) // 2
        x = self.second(x * mask_of(half_N, x.shape[2])[:, None, :, None])
        x = F.silu(self.pointwise(x.permute(0, 2, 3, 1)))
        return self.dropout(self.norm(self.out(x.flatten(2)))), (half_N + 1) // 2


class FeedForward(nn.Module):
    def __init__(self, width: int, factor: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, factor * width)
        self.down = nn.Linear(factor * width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x_NUD: Tensor) -> Tensor:
        return self.dropout(self.down(F.silu(self.up(self.norm(x_NUD)))))


class Attention(nn.Module):
    """Self-attention over the whole clip with rotary positions (Su et al., RoFormer, 2021)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x_NUD: Tensor, rotary: tuple[Tensor, Tensor], absent_N11U: Tensor) -> Tensor:
        N, U, D = x_NUD.shape
        qkv = self.qkv(self.norm(x_NUD)).view(N, U, 3, self.heads, D // self.heads)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        q, k = _rotated(q, *rotary), _rotated(k, *rotary)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=absent_N11U.to(q.dtype))
        return self.dropout(self.out(x.transpose(1, 2).reshape(N, U, D)))


class Convolution(nn.Module):
    """What frames near each other have to say; LayerNorm for BatchNorm, whose statistics do not average or resume."""

    def __init__(self, width: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gated = nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.inner_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x_NUD: Tensor, inside_NU1: Tensor) -> Tensor:
        x = F.glu(self.gated(self.norm(x_NUD)), dim=-1) * inside_NU1
        x = self.depthwise(x.transpose(1, 2)).transpose(1, 2)
        return self.dropout(self.out(F.silu(self.inner_norm(x))))


class Block(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward, norm (Gulati et al., Conformer, 2020)."""

    def __init__(self, config: ModelSection, drop_path: float) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.before = FeedForward(config.width, config.ff_factor, config.dropout)
        self.attention = Attention(config.width, config.heads, config.dropout)
        self.convolution = Convolution(config.width, config.kernel, config.dropout)
        self.after = FeedForward(config.width, config.ff_factor, config.dropout)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x_NUD: Tensor, rotary: tuple[Tensor, Tensor], absent: Tensor, inside: Tensor) -> Tensor:
        x = torch.add(x_NUD, self.before(x_NUD), alpha=0.5)
        x = x + self.attention(x, rotary, absent)
        x = x + self.convolution(x, inside)
        x = self.norm(torch.add(x, self.after(x), alpha=0.5))
        if self.training and self.drop_path:
            kept = torch.rand(len(x), 1, 1, device=x.device) >= self.drop_path
            x = torch.where(kept, x, x_NUD)
        return x


class SpeechModel(nn.Module):
    """Log-mel features to log-probabilities of symbols at 25 frames a second, normalisation included."""

    mean_F: Tensor
    std_F: Tensor

    def __init__(self, config: ModelSection, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("mean_F", torch.zeros(FILTERS))
        self.register_buffer("std_F", torch.ones(FILTERS))
        self.stem = Stem(config.stem_channels, config.width, config.dropout)
        depth = max(1, config.blocks - 1)
        self.blocks = nn.ModuleList(Block(config, config.drop_path * i / depth) for i in range(config.blocks))
        self.head = nn.Linear(config.width, vocabulary_size)
        self._initialise()

    def _initialise(self) -> None:
        # branches start small beside what they are added to, and the head starts without an opinion
        branch_gain = 1 / math.sqrt(2 * len(self.blocks))
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
                if name.startswith("blocks.") and name.endswith((".down", ".out")):
                    module.weight.data.mul_(branch_gain)
        nn.init.normal_(self.head.weight, std=0.02)

    def set_statistics(self, mean_F: Tensor, std_F: Tensor) -> None:
        """Take the corpus's mean and deviation of each filter (80) into the model, for good."""
        self.mean_F.copy_(mean_F)
        self.std_F.copy_(std_F)

    def levelled(self, features_NTF: Tensor, frames_N: Tensor) -> Tensor:
        """Features (N, T, F), of which normalisation by the clip takes the log of the clip's mean power in each filter.

        The level of a recording and the colour of its microphone multiply power, so they cancel; and as loud frames
        make the mean, silence between words does not.
        """
        if self.config.normalisation == "corpus":
            return features_NTF
        inside_NT1 = mask_of(frames_N, features_NTF.shape[1])[:, :, None]
        power_N1F = torch.where(inside_NT1, features_NTF, ABSENT).exp().sum(dim=1, keepdim=True)
        mean_N1F = power_N1F / frames_N.clamp_min(1)[:, None, None]
        return features_NTF - mean_N1F.clamp_min(LEAST_POWER).log()

    def forward(self, features_NTF: Tensor, frames_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (N, U, V) float32 and output frames (N) int64; beyond a clip's own they mean nothing."""
        log_probs, frames, _ = self.forward_with_taps(features_NTF, frames_N, ())
        return log_probs, frames

    def forward_with_taps(
        self, features_NTF: Tensor, frames_N: Tensor, layers: tuple[int, ...], hidden_NTF: Tensor | None = None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Like ``forward``, and what the same head reads after the blocks ``layers`` (from 1), in block order.

        Where ``hidden_NTF`` is true the model sees the corpus's mean.
        """
        normalised = (self.levelled(features_NTF, frames_N) - self.mean_F) / self.std_F
        if hidden_NTF is not None:
            normalised = normalised.masked_fill(hidden_NTF, 0.0)
        x, frames_N = self.stem(normalised, frames_N)
        inside_NU = mask_of(frames_N, x.shape[1])
        absent_N11U = torch.where(inside_NU, 0.0, ABSENT)[:, None, None, :]
        inside_NU1 = inside_NU[:, :, None].to(x.dtype)
        rotary = _rotary(x, self.config.width // self.config.heads)
        taps = []
        for number, block in enumerate(self.blocks, 1):
            x = block(x, rotary, absent_N11U, inside_NU1)
            if number in layers:
                taps.append(self._read(x))
        return self._read(x), frames_N, taps

    def _read(self, x_NUD: Tensor) -> Tensor:
        return F.log_softmax(self.head(x_NUD).float(), dim=-1)


def _rotary(x_NUD: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine (U, size) of each position's angles, halves alike."""
    half = torch.arange(size // 2, device=x_NUD.device, dtype=torch.float32)
    rates = torch.exp(half * (-2 * math.log(ROTARY_BASE) / size))
    angles = torch.arange(x_NUD.shape[1], device=x_NUD.device, dtype=torch.float32)[:, None] * rates
    angles = torch.cat((angles, angles), dim=1)
    return angles.cos(), angles.sin()


def _rotated(x_NHUd: Tensor, cos_Ud: Tensor, sin_Ud: Tensor) -> Tensor:
    left, right = x_NHUd.chunk(2, dim=-1)
    turned = x_NHUd * cos_Ud + torch.cat((-right, left), dim=-1) * sin_Ud
    return turned.to(x_NHUd.dtype)
