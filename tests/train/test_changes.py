"""Whole sessions of the speech recipe when data or configuration changed in between."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import train.loop
from core import checkpoint
from core.events import Evaluated, Rewarmed, Started
from core.manifest import META, Row, publish, row_id
from core.outcome import Outcome
from core.run_dir import RunDir, read_json
from core.seen import origins_of
from tests.train.conftest import (
    assert_equal,
    events_of,
    lines,
    publish_rows,
    sit,
    snapshot,
    started,
    state_of,
    tiny_config,
    tone_rows,
)
from train.finished import already_finished
from train.loader import Loader
from train.recipes.speech_data import Clips
from train.sitting import SMALL_LOSS_SECONDS, changed_rows
from train.step import Stepper

STEPS = 12


@pytest.fixture
def run(tmp_path: Path, train_rows: list[Row], valid_rows: list[Row]) -> RunDir:
    run = RunDir(tmp_path, "tiny")
    publish_rows(run, train_rows, valid_rows)
    return run


def rates(run: RunDir) -> dict[int, float]:
    return {line["step"]: line["lr"] for line in lines(run)}


def retold(row: Row, text: str) -> Row:
    """The same recording with another transcript."""
    return replace(row, text=text, id=row_id(row.digest, text, row.group))


def test_a_changed_transcript_ends_the_epoch_and_warms_up(
    run: RunDir, train_rows: list[Row], valid_rows: list[Row]
) -> None:
    config = tiny_config(train={"steps": 20, "log_every_steps": 1})
    sit(run, config, until_step=7)
    statistics = checkpoint.read(run.last)["model"]["mean_F"]
    publish_rows(run, [retold(train_rows[0], "two"), *train_rows[2:]], valid_rows)
    outcome = sit(run, config, until_step=11)
    assert outcome.to_step == 11
    assert started(run).notes[0] == (
        "resumed at step 7 of 20 (epoch 2/10, batch 2); data changed: +0 -1 ~1 clips -> "
        "new epoch, learning rate warms up again"
    )
    assert [event for event in events_of(run) if isinstance(event, Rewarmed)] == [
        Rewarmed(step=7, reason="data changed: +0 -1 ~1 clips")
    ]
    # a third, two thirds, then all of what the schedule says
    whole = tiny_config(train={"steps": 20}).train
    schedule = train.loop.Schedule(whole.lr, 3, 0.05, 20)
    assert [rates(run)[step] / schedule.lr(step - 1) for step in (7, 8, 9, 10, 11)] == pytest.approx(
        [1, 1 / 3, 2 / 3, 1, 1]
    )
    place = checkpoint.read(run.last)["place"]
    assert (place["epoch"], place["batch"], place["consumed"]) == (3, 4, 11)
    # the features' mean and deviation are those of the beginning, for good
    assert torch.equal(checkpoint.read(run.last)["model"]["mean_F"], statistics)
    # in the next session nothing has changed
    sit(run, config, until_step=12)
    assert started(run).notes[0] == "resumed at step 11 of 20 (epoch 3/10, batch 4)"
    assert rates(run)[12] == pytest.approx(schedule.lr(11))


def test_a_warm_up_after_a_change_goes_on_in_the_next_session(
    run: RunDir, train_rows: list[Row], valid_rows: list[Row]
) -> None:
    config = tiny_config(train={"steps": 20, "log_every_steps": 1})
    sit(run, config, until_step=7)
    publish_rows(run, [retold(train_rows[0], "two"), *train_rows[2:]], valid_rows)
    for step in (8, 9, 11):
        sit(run, config, until_step=step)
    schedule = train.loop.Schedule(tiny_config().train.lr, 3, 0.05, 20)
    assert [rates(run)[step] / schedule.lr(step - 1) for step in (8, 9, 10, 11)] == pytest.approx([1 / 3, 2 / 3, 1, 1])


def test_added_removed_and_changed_clips_are_counted(
    run: RunDir, tmp_path: Path, train_rows: list[Row], valid_rows: list[Row]
) -> None:
    sit(run, until_step=5)
    publish_rows(run, [retold(train_rows[0], "two"), *train_rows[3:], *tone_rows(tmp_path, [50])], valid_rows)
    sit(run, until_step=6)
    # at an epoch's edge no epoch is lost
    assert started(run).notes[0] == (
        "resumed at step 5 of 12 (epoch 2/10, batch 0); data changed: +1 -2 ~1 clips -> learning rate warms up again"
    )
    assert checkpoint.read(run.last)["place"]["epoch"] == 2


def test_counts_are_not_guessed_when_the_rows_of_before_are_not_known() -> None:
    assert changed_rows(None, "d", []) == ""
    assert changed_rows({"data_id": "other", "rows": {}}, "d", []) == ""
    assert changed_rows({"data_id": "d", "rows": {"a": "1"}}, "d", []) == "+0 -1 ~0 clips"


def test_rows_in_another_order_from_another_folder_are_the_same_run(
    run: RunDir, whole_speech: RunDir, tmp_path: Path, train_rows: list[Row], valid_rows: list[Row]
) -> None:
    sit(run, until_step=7)
    (pack,) = {row.audio for row in train_rows}
    moved = tmp_path / "elsewhere.pcm16"
    (tmp_path / pack).rename(moved)
    publish_rows(
        run, [replace(row, audio=moved.name, name=f"moved/{row.name}") for row in train_rows[::-1]], valid_rows
    )
    sit(run)
    assert started(run).notes[0] == "resumed at step 7 of 12 (epoch 2/10, batch 2)"
    assert_equal(state_of(whole_speech), state_of(run))


def test_new_validation_data_resets_the_best_and_moves_hearings_aside(
    run: RunDir, tmp_path: Path, train_rows: list[Row]
) -> None:
    sit(run, until_step=6)
    before = read_json(run.heard / "step_0000004.json")
    assert checkpoint.read(run.last)["progress"]["best_step"] == 4
    publish_rows(run, train_rows, tone_rows(tmp_path, range(200, 203), "carla"))
    sit(run, until_step=7)
    assert "validation data changed: the best score begins anew" in started(run).notes
    assert checkpoint.read(run.last)["progress"]["best_step"] is None
    aside = run.heard / before["valid_id"][:8]
    assert sorted(path.name for path in aside.iterdir()) == ["clips.json", "samples.json", "step_0000004.json"]
    sit(run)
    progress = checkpoint.read(run.last)["progress"]
    assert progress["best_step"] in (8, 12)
    assert checkpoint.read(run.best)["step"] == progress["best_step"]
    assert [clip["reciter"] for clip in read_json(run.heard / "clips.json")] == ["carla"] * 3


def test_only_new_validation_data_makes_a_finished_run_validate_once(
    run: RunDir, tmp_path: Path, train_rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    sit(run)
    publish_rows(run, train_rows, tone_rows(tmp_path, range(200, 203), "carla"))
    assert already_finished(run, tiny_config()) is None
    monkeypatch.setattr(Stepper, "update", lambda *_: pytest.fail("a step"))
    assert sit(run).kind == "finished"
    count = sum(isinstance(event, Evaluated) for event in events_of(run))
    assert count == 4
    assert checkpoint.read(run.best)["step"] == STEPS
    assert already_finished(run, tiny_config()) is not None


@pytest.mark.parametrize(("after_change", "steps"), [(0.5, 6), (0.2, 5), (0.0, 0)])
def test_new_data_opens_a_finished_run_again(
    run: RunDir, train_rows: list[Row], valid_rows: list[Row], after_change: float, steps: int
) -> None:
    config = tiny_config(train={"after_change": after_change})
    sit(run, config)
    publish_rows(run, [retold(train_rows[0], "two"), *train_rows[1:]], valid_rows)
    assert already_finished(run, config) is None
    # also when that takes two sessions
    if steps:
        assert sit(run, config, until_step=14).kind == "paused"
    outcome = sit(run, config)
    assert (outcome.kind, outcome.to_step) == ("finished", STEPS + steps)
    assert already_finished(run, config) is not None
    said = " ".join(note for event in events_of(run) if isinstance(event, Started) for note in event.notes)
    assert ("learning rate warms up again" if steps else "the finished run takes no step on it") in said


def test_a_longer_run_warms_up_and_a_shorter_one_finishes_where_it_is(run: RunDir) -> None:
    sit(run, until_step=6)
    sit(run, tiny_config(train={"steps": 24}), until_step=7)
    assert "length changed 12 -> 24 steps -> learning rate warms up again" in started(run).notes[0]
    outcome = sit(run, tiny_config(train={"steps": 5}))
    assert (outcome.kind, outcome.to_step) == ("finished", 7)
    assert "already beyond the new length of 5 steps: the run finishes here" in started(run).notes
    status = read_json(run.status)
    assert (status["step"], status["total_steps"], status["phase"]) == (7, 7, "finished")


def test_a_plan_field_waits_for_the_next_epoch_and_a_free_one_does_not(run: RunDir, whole_speech: RunDir) -> None:
    sit(run, until_step=6)
    sit(run, tiny_config(train={"max_batch_clips": 1, "log_every_steps": 1}), until_step=11)
    assert "from the next epoch: train.max_batch_clips: 512 -> 1" in started(run).notes
    # the running epoch ends after its five batches, and only then come batches of one clip
    place = checkpoint.read(run.last)["place"]
    assert (place["epoch"], place["batch"]) == (3, 1)
    assert [line["step"] for line in lines(run)] == [2, 4, 6, 7, 8, 9, 10, 11]
    same = [
        {k: v for k, v in line.items() if k in ("step", "units_seen")} for line in lines(run) if line["step"] in (8, 10)
    ]
    assert same == [{k: v for k, v in line.items() if k in ("step", "units_seen")} for line in lines(whole_speech)[3:5]]


def test_a_rewarm_field_applies_at_once(run: RunDir) -> None:
    sit(run, until_step=6)
    sit(run, tiny_config(train={"lr": 2e-2, "weight_decay": 0.5}), until_step=8)
    assert (
        "train.lr: 0.01 -> 0.02; train.weight_decay: 0.001 -> 0.5 -> learning rate warms up again"
        in started(run).notes[0]
    )
    groups = checkpoint.read(run.last)["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]


def test_a_higher_speed_that_leaves_out_clips_begins_a_new_epoch(run: RunDir) -> None:
    sit(run, until_step=7)
    assert sit(run, tiny_config(augment={"speed": [0.9, 1.6]})).kind == "finished"
    notes = started(run).notes
    assert "3 clips left out: too short for their letters at speed 1.6" in notes
    assert notes[0] == (
        "resumed at step 7 of 12 (epoch 2/10, batch 2); data changed: +0 -3 ~0 clips; "
        "augment.speed: [0.9, 1.1] -> [0.9, 1.6] -> new epoch, learning rate warms up again"
    )


def pretend_trained(run: RunDir, seconds: float) -> None:
    value = {k: v for k, v in checkpoint.read(run.last).items() if k != "format"}
    value["progress"]["train_seconds"] = seconds
    checkpoint.write(run.last, value)


WIDER = tiny_config(model={"width": 32})


def test_a_fixed_change_after_ten_minutes_of_training_is_refused_and_nothing_touched(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    sit(run, until_step=6)
    pretend_trained(run, SMALL_LOSS_SECONDS)
    before = snapshot(run)
    outcome = sit(run, WIDER)
    assert (outcome.kind, outcome.exit_code, outcome.from_step, outcome.to_step) == ("invalid", 65, 6, 6)
    said = capsys.readouterr().err
    assert "model.width: 16 -> 32" in said
    assert "tiny has 0.2 h of training, and this does not fit it; nothing was touched" in said
    assert "or begin anew: `layl train tiny --on-change archive`" in said
    assert "problems" not in said
    assert snapshot(run) == before
    # taken back, it goes on
    assert sit(run).kind == "finished"


def test_a_finished_run_is_never_put_aside_unasked(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert sit(run).kind == "finished"
    before = snapshot(run)
    assert sit(run, WIDER).kind == "invalid"
    assert "tiny is finished, and this does not fit it" in capsys.readouterr().err
    assert snapshot(run) == before


def test_steps_that_are_named_make_epochs_that_are_shown(run: RunDir) -> None:
    sit(run, tiny_config(train={"steps": 12}), until_step=2)
    # five batches an epoch
    assert started(run).epochs == 3


def test_a_run_that_ends_within_its_warm_up_is_warned_of(run: RunDir) -> None:
    sit(run, tiny_config(train={"warmup_steps": 7}), until_step=1)
    assert any("warms up over 7 of 12 steps: little will be learned" in note for note in started(run).notes)


@pytest.mark.parametrize(
    ("seconds", "on_change"), [(SMALL_LOSS_SECONDS, "archive"), (SMALL_LOSS_SECONDS - 1, "refuse")]
)
def test_a_fixed_change_puts_the_run_aside_when_asked_or_when_little_is_lost(
    run: RunDir, capsys: pytest.CaptureFixture[str], seconds: float, on_change: str
) -> None:
    sit(run, until_step=6)
    pretend_trained(run, seconds)
    run.output.write_text("what this session prints")
    before = snapshot(run)
    outcome = sit(run, WIDER, until_step=2, on_change=on_change)
    assert outcome == Outcome("paused", 0, 2, "step 2 was the session's last")
    aside = run.archive / "tiny-1"
    assert (aside / "last.pt").read_bytes() == before["last.pt"]
    assert checkpoint.read(run.last)["progress"]["step"] == 2
    assert started(run).notes[0] == f"begins anew (model.width: 16 -> 32); the run of before is in {aside}"
    assert [event.step for event in events_of(run) if isinstance(event, Started)] == [0]
    assert started(run).notes[1].startswith("new run")
    # the new run's files are its own, and the session's output did not go with the old ones
    assert [path.name for path in run.step_files()] == []
    assert run.output.read_text() == "what this session prints"


def moved_to_valid(run: RunDir, train_rows: list[Row], valid_rows: list[Row]) -> None:
    publish_rows(run, train_rows[:15], [*valid_rows, *train_rows[15:]])


def test_a_clip_that_was_trained_on_and_is_held_out_now_stops_the_session(
    run: RunDir, train_rows: list[Row], valid_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    sit(run, until_step=6)
    pretend_trained(run, SMALL_LOSS_SECONDS)
    moved_to_valid(run, train_rows, valid_rows)
    before = snapshot(run)
    outcome = sit(run)
    assert (outcome.kind, outcome.exit_code) == ("invalid", 65)
    said = capsys.readouterr().err
    assert "clip anna/15, " in said and "train.allow_seen" in said and "--on-change archive" in said
    assert snapshot(run) == before
    # put back, it goes on; archived, it begins anew
    publish_rows(run, train_rows, valid_rows)
    assert sit(run, until_step=8).kind == "paused"
    moved_to_valid(run, train_rows, valid_rows)
    assert sit(run, until_step=2, on_change="archive").to_step == 2
    assert (run.archive / "tiny-1" / "last.pt").is_file()


def test_scores_on_what_was_trained_on_may_be_allowed_and_say_so_ever_after(
    run: RunDir, train_rows: list[Row], valid_rows: list[Row]
) -> None:
    sit(run, until_step=6)
    moved_to_valid(run, train_rows, valid_rows)
    allowing = tiny_config(train={"allow_seen": True})
    for until in (8, None):
        sit(run, allowing, until_step=until)
        names = [f"clip anna/{i}" for i in range(15, 20)]
        assert started(run).facts["seen_in_training"] == names
        assert read_json(run.status)["seen_in_training"] == names
    assert read_json(run.train_metrics)["seen_in_training"] == names


def test_what_a_run_trained_on_is_remembered_over_sessions(
    run: RunDir, train_rows: list[Row], valid_rows: list[Row]
) -> None:
    sit(run, until_step=4)
    publish_rows(run, train_rows[:15], valid_rows)
    sit(run, until_step=6)
    origins = set(checkpoint.read(run.last)["identity"]["origins"].tolist())
    assert origins == set(origins_of(train_rows).tolist())
    # a clip that left training before comes back held out
    publish_rows(run, train_rows[:15], [*valid_rows, train_rows[17]])
    pretend_trained(run, SMALL_LOSS_SECONDS)
    assert sit(run).kind == "invalid"


def test_a_checkpoint_of_another_run_that_does_not_fit_is_refused_and_not_touched(run: RunDir, tmp_path: Path) -> None:
    wide = tiny_config(model={"width": 24})
    other = RunDir(tmp_path / "other", "wide")
    publish_rows(other, tone_rows(other.root, range(8)), tone_rows(other.root, range(100, 102), "berta"))
    sit(other, wide, until_step=3)
    pretend_trained(other, SMALL_LOSS_SECONDS)
    sit(run, until_step=5)
    shutil.copy(other.last, run.last)
    before = snapshot(run)
    outcome = sit(run)
    assert (outcome.kind, outcome.exit_code) == ("invalid", 65)
    assert "model.width: 24 -> 16" in outcome.reason
    assert snapshot(run) == before


def test_another_vocabulary_is_a_fixed_change(run: RunDir) -> None:
    sit(run, until_step=3)
    pretend_trained(run, SMALL_LOSS_SECONDS)
    tokens = run.manifests / "tokens.txt"
    files = {path.name: path.read_text(encoding="utf-8") for path in run.manifests.iterdir() if path.name != META}
    meta = read_json(run.manifests / META)
    publish(
        run.manifests,
        {**files, "tokens.txt": tokens.read_text(encoding="utf-8") + "z 11\n"},
        {"data_id": meta["data_id"]},
    )
    outcome = sit(run)
    assert outcome.kind == "invalid"
    assert "(gone: nothing; new: z)" in outcome.reason


def test_the_clean_start_is_never_taken_back_by_new_data(
    run: RunDir, train_rows: list[Row], valid_rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean: list[bool] = []
    real = Clips.encode
    monkeypatch.setattr(Clips, "encode", lambda self, row, draw: (clean.append(draw.clean), real(self, row, draw))[1])
    sizes: list[int] = []
    counted = Loader._count_bad
    monkeypatch.setattr(Loader, "_count_bad", lambda self, loaded: (sizes.append(len(clean)), counted(self, loaded))[1])
    sit(run, until_step=3)
    publish_rows(run, [retold(train_rows[0], "two"), *train_rows[1:]], valid_rows)
    sit(run, until_step=9)
    # four clean batches (augment.start_after_steps) of the run's first, and none after
    first = sizes[3]
    assert clean == [True] * first + [False] * (len(clean) - first)
    assert len(sizes) == 9
