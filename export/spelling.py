"""From Uthmani to imlaei spelling, word by word: the model writes as the mushaf does, apps show what people type.

A model that wrote imlaei perfectly would still have 10.8 % of its words wrong against Uthmani text, so the
spelling is changed after recognition and never in training.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from core.speech.text import letters


def imlaei_spelling() -> dict[str, str]:
    """Uthmani letters of a word to its imlaei spelling, for words where the two differ, sorted.

    From the Hafs text of the quran-text package; where one form stands for several words, the most frequent one.
    Words of Warsh that are written like a Hafs word are served too, the others stay as they are.
    """
    from quran_text import Mushaf

    spelt: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for ayah in Mushaf.hafs().ayahs:
        for word, imlaei in zip(ayah.words, ayah.rasm_imlai or (), strict=False):
            if imlaei:
                spelt[letters(word)][imlaei] += 1
    likeliest = {word: forms.most_common(1)[0][0] for word, forms in sorted(spelt.items())}
    return {word: imlaei for word, imlaei in likeliest.items() if imlaei != word}
