"""The sections of a speech run's configuration. No torch here: the command line reads it in a blink."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field, model_validator

from core.config import RunSection, Section, TrainSection, setting

Group = Literal["professional", "ordinary"]

#: al-Fatiha and the last twenty-two suras: short, and known by heart everywhere.
SHORT_SURAS = (1, *range(93, 115))


class SampleSource(Section):
    """Synthetic recitation made on this machine: honest test material for the pipeline, not for accuracy claims."""

    kind: Literal["sample"] = setting("sample", "free", "the embedded synthetic recitation")
    readings: tuple[Literal["hafs", "warsh"], ...] = setting(("hafs", "warsh"), "free", "which readings", min_length=1)
    suras: tuple[int, ...] = setting(SHORT_SURAS, "free", "which suras are read", min_length=1)
    voices: int = setting(11, "free", "how many voices read; the last three are held out", ge=4, le=24)


class DigitsSource(Section):
    """Free Spoken Digit Dataset: real speech, composed into connected digits of one speaker."""

    kind: Literal["digits"] = setting("digits", "free", "connected digits of real speakers")
    path: str | None = setting(
        None, "free", "folder of {digit}_{speaker}_{take}.wav; else LAYL_FSDD, else data/raw/fsdd"
    )
    test_speaker: str = setting("theo", "free", "the speaker who is never trained on")
    utterances: int = setting(1200, "free", "training utterances a speaker", ge=1)
    seed: int = setting(1, "free", "which digits follow which", ge=0)

    def folder(self) -> str:
        """Where the clips lie: the config's path, else the environment, else the usual place."""
        return self.path or os.environ.get("LAYL_FSDD") or "data/raw/fsdd"


class NemoSource(Section):
    """A JSON-lines manifest as NeMo writes it: audio (or audio_filepath, path) and text, the rest optional."""

    kind: Literal["nemo"] = setting("nemo", "free", "a JSON-lines manifest")
    manifest: str = setting(..., "free", "the .jsonl file")
    root: str | None = setting(None, "free", "folder that audio paths are relative to; else the manifest's own")
    group: Group = setting("ordinary", "free", "professional or ordinary readers")


Source = Annotated[SampleSource | DigitsSource | NemoSource, Field(discriminator="kind")]


class SplitSection(Section):
    """Who is held out. Named readers win; everybody else falls by a hash of the name, stable when data is added."""

    valid: tuple[str, ...] = setting((), "free", "readers held out for validation")
    test: tuple[str, ...] = setting((), "free", "readers held out for the test")
    valid_share: float = setting(0.1, "free", "part of the other readers that validates", ge=0, lt=1)
    test_share: float = setting(0.1, "free", "part of the other readers that tests", ge=0, lt=1)
    unseen_verse_share: float = setting(0.0, "free", "part of the texts that no training reader may read", ge=0, lt=1)

    @model_validator(mode="after")
    def _disjoint(self) -> SplitSection:
        if both := sorted(set(self.valid) & set(self.test)):
            raise ValueError(f"{', '.join(both)} cannot be in valid and in test; name a reader in one of them")
        return self


class DataSection(Section):
    """Where the audio comes from and how it becomes manifests."""

    sources: tuple[Source, ...] = setting(..., "free", "one or more corpora", min_length=1)
    text: Literal["quran_letters", "plain"] = setting("quran_letters", "fixed", "how text becomes letters")
    split: SplitSection = SplitSection()
    max_drop_share: float = setting(0.2, "free", "part of a source's rows that may be rejected", ge=0, le=1)
    pack: bool = setting(False, "free", "decode once into 16 kHz shards, so that training never decodes")
    ordinary_share: float = setting(
        0.0, "plan", "ordinary people's part of an epoch's audio; 0 leaves it alone", ge=0, lt=1
    )
    warsh_weight: float = setting(1.0, "plan", "how often Warsh counts among the professional readers", gt=0)
    repeat_cap: float = setting(4.0, "plan", "how often a clip may come in an epoch at most", ge=1)


#: preset -> (width, blocks, heads, feed-forward factor, kernel, stem channels)
PRESETS: dict[str, dict[str, int]] = {
    "demo": {"width": 96, "blocks": 6, "heads": 4, "ff_factor": 4, "kernel": 15, "stem_channels": 32},
    "16m": {"width": 256, "blocks": 10, "heads": 4, "ff_factor": 4, "kernel": 15, "stem_channels": 64},
    "33m": {"width": 352, "blocks": 11, "heads": 4, "ff_factor": 4, "kernel": 15, "stem_channels": 96},
}


class ModelSection(Section):
    """The encoder. A preset fills every field that is not named."""

    preset: Literal["demo", "16m", "33m"] = setting("demo", "fixed", "a size to start from")
    width: int = setting(0, "fixed", "features a frame", ge=8)
    blocks: int = setting(0, "fixed", "conformer blocks", ge=1)
    heads: int = setting(0, "fixed", "attention heads", ge=1)
    ff_factor: int = setting(0, "fixed", "feed-forward width, as a multiple of width", ge=1)
    kernel: int = setting(0, "fixed", "frames a depthwise convolution sees", ge=3)
    stem_channels: int = setting(0, "fixed", "channels of the convolutional stem", ge=4)
    normalisation: Literal["corpus", "clip"] = setting(
        "corpus", "fixed", "by the corpus's mean and deviation alone, or after taking each clip's own mean spectrum out"
    )
    dropout: float = setting(0.1, "rewarm", "dropout in every block", ge=0, lt=1)
    drop_path: float = setting(0.0, "rewarm", "chance to skip the deepest block (stochastic depth)", ge=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: object) -> object:
        if isinstance(values, dict):
            # a preset that is not there gets a sentence of its own later, and no others for what it would have filled
            preset = values.get("preset", "demo")
            return {**PRESETS[preset if isinstance(preset, str) and preset in PRESETS else "demo"], **values}
        return values

    @model_validator(mode="after")
    def _fits(self) -> ModelSection:
        problems = []
        if self.width % self.heads or (self.width // self.heads) % 2:
            problems.append(f"width {self.width} must be an even multiple of heads {self.heads} (rotary positions)")
        if self.kernel % 2 == 0:
            problems.append(f"kernel {self.kernel} must be odd")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class SpeechTrainSection(TrainSection):
    """What the speech recipe adds to the engine's settings."""

    max_batch_seconds: float = setting(300.0, "plan", "padded audio in a batch: longest clip x clips", gt=0)
    max_batch_clips: int = setting(512, "plan", "clips in a batch at most", ge=1)
    inter_ctc_layers: tuple[int, ...] | None = setting(
        None, "rewarm", "blocks (from 1) with an intermediate CTC loss; the middle one unless named; [] for none"
    )
    inter_ctc_weight: float = setting(0.3, "rewarm", "part of the loss that the intermediate ones have", ge=0, lt=1)


class AugmentSection(Section):
    """What happens to the sound of a training clip once the clean start is over."""

    start_after_steps: int | None = setting(
        None, "rewarm", "clean batches first; train.warmup_steps unless named", ge=0
    )
    ramp_steps: int = setting(
        0, "rewarm", "batches after the clean start over which the augmented part of the clips grows to all", ge=0
    )
    speed: tuple[float, float] = setting((0.9, 1.1), "rewarm", "slowest and fastest playing speed")
    formants: tuple[float, float] = setting(
        (1.0, 1.0), "rewarm", "lowest and highest factor by which a voice's formants move, pitch and tempo apart"
    )
    gain_db: tuple[float, float] = setting((-6.0, 6.0), "rewarm", "softest and loudest change of level")
    noise_share: float = setting(0.5, "rewarm", "part of the clips that get noise", ge=0, le=1)
    noise_snr_db: tuple[float, float] = setting((5.0, 25.0), "rewarm", "loudest and softest noise")
    tilt_share: float = setting(0.3, "rewarm", "part of the clips that another microphone records", ge=0, le=1)
    reverb_share: float = setting(0.2, "rewarm", "part of the clips that get a room", ge=0, le=1)
    band_share: float = setting(0.2, "rewarm", "part of the clips that sound like a phone", ge=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> AugmentSection:
        problems = []
        for name in ("speed", "formants", "gain_db", "noise_snr_db"):
            low, high = getattr(self, name)
            if low > high:
                problems.append(f"{name} [{low:g}, {high:g}]: the first must not be above the second")
        for name in ("speed", "formants"):
            low, high = getattr(self, name)
            if not (0.5 <= low <= 2 and 0.5 <= high <= 2):
                problems.append(f"{name} [{low:g}, {high:g}] must lie between 0.5 and 2")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class SpecAugmentSection(Section):
    """Masks on the features of a training clip; all of them together never hide more than ``max_time_share`` of it."""

    freq_masks: int = setting(2, "rewarm", "frequency masks a clip", ge=0)
    freq_width: int = setting(27, "rewarm", "filters a frequency mask hides at most", ge=0, le=80)
    time_masks: int = setting(5, "rewarm", "time masks a clip", ge=0)
    time_width: int = setting(40, "rewarm", "frames a time mask hides at most", ge=0)
    max_time_share: float = setting(0.15, "rewarm", "part of a clip that time masks hide at most", ge=0, le=1)


class ExportSection(Section):
    """What is shipped."""

    candidates: tuple[Literal["best", "last", "mean_last"], ...] = setting(
        ("best", "last", "mean_last"), "free", "which weights compete", min_length=1
    )
    average: int = setting(5, "free", "checkpoints in the mean of the last N", ge=1)
    max_int8_loss_points: float = setting(0.1, "free", "CER points that int8 may lose (or 2 % of itself)", ge=0)


class SpeechRun(RunSection):
    """A whole speech run."""

    recipe: Literal["speech"] = setting("speech", "fixed", "which recipe trains this run")
    data: DataSection
    model: ModelSection = Field(default_factory=lambda: ModelSection.model_validate({}))
    train: SpeechTrainSection = SpeechTrainSection()
    augment: AugmentSection = AugmentSection()
    spec_augment: SpecAugmentSection = SpecAugmentSection()
    export: ExportSection = ExportSection()
