"""What was heard, over time, and never beside another clip."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.manifest import Row
from core.run_dir import RunDir, read_json, write_json
from train.heard import KEPT_VALIDATIONS, Heard, choose_samples, clip_facts


def row(reader: str | None, aya: int, *, seconds: float = 5.0, riwaya: str | None = "hafs") -> Row:
    return Row(
        id=f"{reader}{aya}", name=f"{reader}/1/{aya}", audio="a.wav", digest="d", duration=seconds, text="بسم",
        source="s", group="professional", riwaya=riwaya, reciter=reader, sura=1, aya=aya,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path, "r")
    run.path.mkdir(parents=True)
    return run


ROWS = [row("b", 1), row("a", 1), row("b", 2), row("w", 1, riwaya="warsh"), row("a", 2)]


def begun(run: RunDir, rows: list[Row] = ROWS, step: int = 0, valid_id: str = "first-id-0123") -> Heard:
    heard = Heard(run, rows, valid_id)
    heard.begin(step)
    return heard


def test_readers_queue_up_warsh_first_then_by_name_and_give_their_middle_clip_in_turn() -> None:
    rows = [row("b", i) for i in range(5)] + [row("a", i) for i in range(4)] + [row("w", 9, riwaya="warsh")]
    chosen = [f"{rows[i].reciter}{rows[i].aya}" for i in choose_samples(rows)]
    # a: 2 of 0..3, then 1 of 0 1 3, then 3 of 0 3, then 0
    assert chosen == ["w9", "a2", "b2", "a1", "b3", "a3", "b1", "a0", "b4", "b0"]


def test_at_most_twelve_are_chosen() -> None:
    assert len(choose_samples([row("a", i) for i in range(40)])) == 12
    many = [row(f"reader{i:02}", 1) for i in range(40)]
    assert [many[i].reciter for i in choose_samples(many)] == [f"reader{i:02}" for i in range(12)]


@pytest.mark.parametrize(("seconds", "chosen"), [(2.99, False), (3.0, True), (20.0, True), (20.01, False)])
def test_samples_are_of_three_to_twenty_seconds(seconds: float, chosen: bool) -> None:
    assert bool(choose_samples([row("a", 1, seconds=seconds)])) == chosen


def test_a_corpus_without_readers_or_readings_has_samples_too() -> None:
    assert choose_samples([row(None, i, riwaya=None) for i in range(3)]) == [1, 2, 0]
    assert choose_samples([]) == []


def test_a_hearing_is_kept_whole_and_as_a_handful(run: RunDir) -> None:
    heard = begun(run)
    heard.write(1000, ["h0", "h1", "", "h3", "h4"])
    heard.write(2000, ["k0", "k1", "k2", "k3", ""])
    assert read_json(run.heard / "clips.json") == [clip_facts(r) for r in ROWS]
    assert read_json(run.heard / "step_0001000.json") == {
        "step": 1000, "valid_id": "first-id-0123", "hyps": ["h0", "h1", "", "h3", "h4"]
    }  # fmt: skip
    samples = read_json(run.samples)
    assert [clip["id"] for clip in samples["clips"]] == ["w1", "a2", "b2", "a1", "b1"]
    assert samples["evals"] == [
        {"step": 1000, "hyps": ["h3", "h4", "", "h1", "h0"]},
        {"step": 2000, "hyps": ["k3", "", "k2", "k1", "k0"]},
    ]
    assert samples["clips"][0] == {
        "reciter": "w", "riwaya": "warsh", "sura": 1, "aya": 1, "duration": 5.0, "ref": "بسم", "id": "w1"
    }  # fmt: skip
    assert "بسم" in run.samples.read_text(encoding="utf-8")


def test_a_second_hearing_at_a_step_takes_the_place_of_the_first(run: RunDir) -> None:
    heard = begun(run)
    heard.write(1000, ["old"] * 5)
    heard.write(1000, ["new"] * 5)
    assert read_json(run.samples)["evals"] == [{"step": 1000, "hyps": ["new"] * 5}]


def test_what_was_heard_beyond_the_step_of_a_resume_is_retracted(run: RunDir) -> None:
    heard = begun(run)
    for step in (1000, 2000, 3000):
        heard.write(step, ["x"] * 5)
    begun(run, step=2000)
    assert sorted(path.name for path in run.heard.glob("step_*")) == ["step_0001000.json", "step_0002000.json"]
    assert [e["step"] for e in read_json(run.samples)["evals"]] == [1000, 2000]


def test_the_newest_fifty_hearings_are_kept(run: RunDir) -> None:
    heard = begun(run)
    for step in range(1, KEPT_VALIDATIONS + 4):
        heard.write(step, ["x"] * 5)
    steps = sorted(path.name for path in run.heard.glob("step_*"))
    assert (len(steps), steps[0]) == (50, "step_0000004.json")
    assert len(read_json(run.samples)["evals"]) == 53


def test_hearings_of_another_validation_set_move_aside(run: RunDir) -> None:
    begun(run).write(1000, ["x"] * 5)
    new = [row("c", i) for i in range(3)]
    begun(run, new, step=1000, valid_id="second-id").write(2000, ["y"] * 3)
    aside = run.heard / "first-id"
    assert sorted(path.name for path in aside.iterdir()) == ["clips.json", "samples.json", "step_0001000.json"]
    assert read_json(aside / "clips.json") == [clip_facts(r) for r in ROWS]
    assert [path.name for path in run.heard.glob("step_*")] == ["step_0002000.json"]
    assert read_json(run.heard / "clips.json") == [clip_facts(r) for r in new]
    assert [e["step"] for e in read_json(run.samples)["evals"]] == [2000]


def test_the_same_clips_in_another_order_are_no_longer_beside_their_hearings(run: RunDir) -> None:
    begun(run).write(1000, ["x"] * 5)
    begun(run, ROWS[::-1], step=1000)
    assert not list(run.heard.glob("step_*"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"clips": [], "evals": 3}', '{"clips": [], "evals": [{"hyps": []}]}'])
def test_unreadable_samples_are_begun_afresh(run: RunDir, text: str) -> None:
    run.samples.write_text(text, encoding="utf-8")
    begun(run, []).write(1000, [])
    assert read_json(run.samples) == {"clips": [], "evals": [{"step": 1000, "hyps": []}]}


def test_hearings_whose_clips_are_not_known_are_not_shown_beside_others(run: RunDir) -> None:
    begun(run).write(1000, ["x"] * 5)
    (run.heard / "clips.json").write_text("torn", encoding="utf-8")
    begun(run, [row("c", 1)], step=1000, valid_id="second-id")
    assert not list(run.heard.glob("step_*"))
    # and with the very same clips nothing is lost
    write_json(run.heard / "step_0001000.json", {"step": 1000, "valid_id": "second-id", "hyps": ["x"]})
    (run.heard / "clips.json").unlink()
    begun(run, [row("c", 1)], step=1000, valid_id="second-id")
    assert [path.name for path in run.heard.glob("step_*")] == ["step_0001000.json"]
