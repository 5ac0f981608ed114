from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.digits_table import main, read_row


def scores(folder: Path, speaker: str, wer: float, cer: float) -> str:
    path = folder / f"digits-{speaker}.json"
    path.write_text(json.dumps({"test": {"wer": wer, "cer": cer}}), encoding="utf-8")
    return str(path)


def test_the_table_ends_with_the_mean_and_the_worst_speaker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [scores(tmp_path, "theo", 0.25, 0.125), scores(tmp_path, "george", 0.05, 0.025)]

    assert main(files) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "| theo | 75.0% | 12.5% |",
        "| george | 95.0% | 2.5% |",
        "| mean | 85.0% | 7.5% |",
        "| worst: theo | 75.0% | 12.5% |",
    ]


def test_a_missing_run_is_named_and_the_others_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([scores(tmp_path, "theo", 0.25, 0.125), str(tmp_path / "digits-lucas.json")]) == 66

    shown = capsys.readouterr()
    assert "| theo |" in shown.out
    assert "digits-lucas.json" in shown.err


def test_scores_of_a_run_without_test_rows_are_refused_with_the_command_that_makes_them(tmp_path: Path) -> None:
    path = tmp_path / "digits-theo.json"
    path.write_text('{"test": null}', encoding="utf-8")

    with pytest.raises(ValueError, match="layl export digits-theo"):
        read_row(path)


def test_no_file_at_all_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 66
    assert "metrics/" in capsys.readouterr().err
