"""How far the ways to run a shipped model agree: letters that differ over all test clips of a run.

``python -m benchmarks.agreement digits-theo digits-george`` compares our own decoder on the int8 file with
sherpa-onnx on the same file, and with our decoder on the float32 file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from rapidfuzz.distance import Levenshtein

from core.manifest import read_prepared
from core.run_dir import RunDir, find_root
from core.speech import audio
from export.client import FLOAT_FILE, Recogniser, SherpaRecogniser


@dataclass(frozen=True)
class Agreement:
    """Letters of the int8 hearings, and how many of them another way of running the model writes differently."""

    clips: int = 0
    letters: int = 0
    sherpa: int = 0
    float32: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __str__(self) -> str:
        letters = max(1, self.letters)
        return (
            f"{self.clips:,} clips, {self.letters:,} letters: int8 against sherpa-onnx on int8 {self.sherpa:,} differ "
            f"({self.sherpa / letters:.3%}), against float32 {self.float32:,} ({self.float32 / letters:.3%})"
        )


def letters_that_differ(one: str, other: str) -> int:
    """Edits between two texts without their spaces."""
    return Levenshtein.distance(one.replace(" ", ""), other.replace(" ", ""))


def agreement(run: RunDir) -> Agreement:
    """Over the test clips of an exported run."""
    int8, full, sherpa = Recogniser(run.models), Recogniser(run.models, FLOAT_FILE), SherpaRecogniser(run.models)
    total = Agreement()
    for row in read_prepared(run.manifests).splits["test"].rows:
        samples = audio.load(row, run.root)
        heard = int8.transcribe(samples)
        total += Agreement(
            clips=1,
            letters=len(heard.replace(" ", "")),
            sherpa=letters_that_differ(heard, sherpa.transcribe(samples)),
            float32=letters_that_differ(heard, full.transcribe(samples)),
        )
    return total


def main(names: Iterable[str]) -> int:
    root, total = find_root(), Agreement()
    for name in names:
        found = agreement(RunDir(root, name))
        total += found
        print(f"{name}: {found}", flush=True)
    print(f"all: {total}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
