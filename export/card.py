"""The model's card: what it hears, on whom it was tested, and how it is run, from the same facts as model.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.seen import names_of
from export.client import FLOAT_FILE, INT8_FILE

SYNTHETIC = (
    "**The speech it was trained and tested on is synthetic** (the source `sample`): the scores show that the "
    "pipeline works, and nothing about how well people are understood."
)
HEARS = {
    "quran_letters": (
        "Recitation of the Quran in the readings of Hafs and Warsh. It writes the letters of the Uthmani text without "
        "marks; `spelling.json` turns its words into imlaei spelling."
    ),
    "plain": "Speech of the corpus it was trained on, written in lower case without punctuation.",
}
GROUPS = {
    "hafs_cer": "Hafs",
    "warsh_cer": "Warsh",
    "professional_cer": "professional readers",
    "ordinary_cer": "ordinary people",
    "muqattaat_cer": "disjoined letters alone (muqatta'at)",
}
CHANGED = (
    "The manifests have changed since these weights were trained: hours and readers are told from those of the export."
)


def card(facts: Mapping[str, Any]) -> str:
    """README.md of a published model. ``facts`` is what model.json holds."""
    scores = facts["scores"]["int8"]
    parts = [
        f"# {facts['name']}",
        f"Unfinished: {facts['unfinished']}." if facts["unfinished"] else "",
        SYNTHETIC if facts["synthetic"] else "",
        "## What it hears",
        HEARS[facts["text"]],
        f"Input is 16 kHz mono in [-1, 1]. {facts['parameters_m']:.1f} M parameters, 25 outputs a second, "
        f"{len(facts['vocabulary'])} symbols.",
        "Trained on " + ", ".join(f"{h:.2f} h of `{name}`" for name, h in facts["trained_hours"].items()) + ".",
        CHANGED if facts["data_changed"] else "",
        seen_sentence(facts["seen_in_training"]),
        "## On whom it was tested",
        f"All figures are of `{INT8_FILE}`, greedy, as sums over all clips; letters are counted without spaces.",
        _table(
            ("", "letters wrong", "words wrong", "skeleton wrong", "clips", "letters"),
            (
                (text, *(_share(scores[split][k]) for k in ("cer", "wer", "skeleton")), *_sizes(scores[split]))
                for split, text in facts["tested_on"].items()
            ),
        ),
        *_groups(scores),
        "## Size and speed",
        _table(
            ("file", "MB", "letters wrong in validation", "real-time factor, one thread"),
            (
                (f"`{file}`", f"{size:.1f}", _share(facts["scores"][kind]["valid"]["cer"]), _factor(facts["rtf"][kind]))
                for kind, file, size in (
                    ("int8", INT8_FILE, facts["size_mb"]["int8"]),
                    ("float32", FLOAT_FILE, facts["size_mb"]["float32"]),
                )
            ),
        ),
        "## Which weights",
        _table(
            ("candidate", "steps", "letters wrong in validation", ""),
            (
                (c["name"], ", ".join(map(str, c["steps"])), _share(c["cer"]), "shipped" if c["shipped"] else "")
                for c in facts["candidates"]
            ),
        ),
        "## What was checked before publishing",
        "\n".join(f"- {gate}" for gate in facts["gates"]),
        "## How to run it",
        f"`layl transcribe --run {facts['run']} recording.mp3`, or with sherpa-onnx:",
        "```python\n"
        f'recognizer = sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(model="{INT8_FILE}", tokens="tokens.txt")\n'
        "```",
        f"Step {facts['step']}, data `{facts['data_id'][:12]}`, configuration `{facts['config_id']}`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def seen_sentence(seen: Sequence[str]) -> str:
    """What a reader of the scores must know of ``seen``; nothing where nobody was."""
    return f"**Seen in training** before they were held out: {names_of(seen)}. The scores flatter." if seen else ""


def _groups(scores: Mapping[str, Any]) -> Iterable[str]:
    for split in ("test", "valid"):
        found = scores[split]
        if not found:
            continue
        rows = [(text, _share(found[key]), "") for key, text in GROUPS.items() if found.get(key) is not None]
        rows += [(f"{n} words", _share(v["cer"]), str(v["clips"])) for n, v in found["by_length"].items() if v["clips"]]
        rows += [(f"reader {n}", _share(v["cer"]), str(v["clips"])) for n, v in found["by_reader"].items()]
        yield f"### By group ({split})"
        yield _table(("group", "letters wrong", "clips"), rows)


def candidate_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The candidates for the console, one line each, the winner marked."""
    return [
        f"{'->' if row['shipped'] else '  '} {row['name']:<10}"
        f" CER {_share(row['cer']):>8}  WER {_share(row['wer']):>8}"
        f"  step{'s' if len(row['steps']) > 1 else ''} {', '.join(map(str, row['steps']))}"
        for row in rows
    ]


def score_lines(facts: Mapping[str, Any]) -> list[str]:
    """The int8 file's scores for the console; the synthetic sample never without saying what it is."""
    scores = facts["scores"]["int8"]
    lines = [
        f"int8: {_share(scores[split]['cer'])} of letters wrong, {_share(scores[split]['wer'])} of words "
        f"({text}; {scores[split]['clips']:,} clips)"
        for split, text in facts["tested_on"].items()
    ]
    if facts["synthetic"]:
        lines.append("the speech is synthetic: these scores say nothing about people")
    if facts["seen_in_training"]:
        names = names_of(facts["seen_in_training"])
        lines.append(f"seen in training before they were held out, so these scores flatter: {names}")
    return lines


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _share(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.2f} %"


def _factor(rtf: float | None) -> str:
    return "-" if rtf is None else f"{rtf:.4f}"


def _sizes(found: Mapping[str, Any]) -> tuple[str, str]:
    return f"{found['clips']:,}", f"{found['letters']:,}"
