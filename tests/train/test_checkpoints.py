"""When to save, what to keep, and what to fall back on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from core import checkpoint
from core.errors import CheckpointError, UnknownFormatError
from core.events import Event, Saved, SaveFailed
from core.run_dir import RunDir, read_json
from tests.train.conftest import CPU, tiny_config
from train.checkpoints import Checkpoints
from train.device import Precision
from train.recipe import Scores
from train.state import Averages, Identity, Place, Progress, TrainState


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path, "r")
    run.path.mkdir(parents=True)
    return run


def state(step: int, *, evaluated: bool = False) -> TrainState:
    torch.manual_seed(step)
    model = nn.Linear(2, 1)
    return TrainState(
        model, torch.optim.AdamW(model.parameters()), Precision("fp32", CPU).scaler,  # type: ignore[arg-type]
        Place(), Progress(step=step, planned=10, evaluated_step=step if evaluated else -1), Averages(CPU),
        Identity(data_id="d", valid_id="v", epochs=2.0, session="s"),
    )  # fmt: skip


def of(run: RunDir, events: list[Event] | None = None, **others: object) -> Checkpoints:
    wanted = {"keep": 0, "minutes": 10.0, "model_facts": {"vocab": ["<blk>", "a"]}, **others}
    emit = (lambda event: None) if events is None else events.append
    return Checkpoints(run, tiny_config(), emit=emit, **wanted)  # type: ignore[arg-type]


def test_the_former_file_stays_beside_the_new_one(run: RunDir) -> None:
    checkpoints = of(run)
    for step in (1, 2, 3):
        assert checkpoints.save(state(step))
    assert checkpoint.read(run.last)["progress"]["step"] == 3
    assert checkpoint.read(run.last_previous)["progress"]["step"] == 2
    assert checkpoints.saved_step == 3


def test_facts_for_those_without_torch_are_written_after_the_checkpoint(run: RunDir) -> None:
    of(run).save(state(10, evaluated=True))
    facts = read_json(run.last_facts)
    assert facts | {"config_id": "", "digest": ""} == {
        "step": 10, "planned": 10, "data_id": "d", "valid_id": "v", "epochs": 2.0, "steps": None, "finished": True,
        "session": "s", "seen_in_training": [], "config_id": "", "digest": "",
    }  # fmt: skip
    # a run without its last validation is not finished
    of(run).save(state(10))
    assert read_json(run.last_facts)["finished"] is False


def test_the_log_is_on_the_disk_before_the_checkpoint_that_covers_it(run: RunDir) -> None:
    order: list[str] = []

    def synced() -> None:
        order.append("synced" if not run.last.exists() else "too late")

    of(run, sync_events=synced).save(state(1))
    assert order == ["synced"]
    assert run.last.exists()


def test_a_log_that_cannot_be_synced_is_a_save_that_failed(run: RunDir) -> None:
    events: list[Event] = []

    def refusing() -> None:
        raise OSError(28, "No space left on device")

    assert not of(run, events, sync_events=refusing).save(state(1))
    assert [type(event) for event in events] == [SaveFailed]
    assert not run.last.exists()


def test_a_save_is_due_after_its_minutes_also_when_the_last_one_failed(run: RunDir) -> None:
    now = [0.0]
    checkpoints = of(run, minutes=10.0, clock=lambda: now[0])
    now[0] = 599
    assert not checkpoints.due()
    now[0] = 600
    assert checkpoints.due()
    run.path.chmod(0o500)
    try:
        checkpoints.save(state(1))
    finally:
        run.path.chmod(0o700)
    assert not checkpoints.due()
    now[0] = 1200
    assert checkpoints.due()


def test_a_save_says_what_it_wrote(run: RunDir) -> None:
    events: list[Event] = []
    of(run, events, clock=lambda: 5.0).save(state(7))
    assert events == [Saved(step=7, file="last.pt", seconds=0.0)]


def test_leftovers_of_a_killed_writer_are_removed_at_the_start(run: RunDir, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_text("x")
    (run.path / ".last.pt.abc.layl-tmp").write_bytes(b"half")
    (run.path / ".link.layl-tmp").symlink_to(outside)
    (run.path / "notes.txt").write_text("mine")
    of(run)
    assert [path.name for path in run.path.iterdir()] == ["notes.txt"]
    assert outside.read_text() == "x"


def test_a_run_that_never_saved_has_nothing_to_go_on_from(run: RunDir) -> None:
    assert of(run).read() == (None, "")


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0x10
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_one_of_before_with_one_line(run: RunDir, damage: str) -> None:
    checkpoints = of(run)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    if damage == "flipped":
        flip(run.last, 0.5)
    else:
        run.last.write_bytes(run.last.read_bytes()[: 0 if damage == "empty" else 700])
    value, note = of(run).read()
    assert value is not None
    assert value["progress"]["step"] == 1
    assert "\n" not in note
    assert str(run.last) in note
    assert note.endswith("; going on from last.prev.pt")


def test_a_missing_checkpoint_falls_back_too(run: RunDir) -> None:
    checkpoints = of(run)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    run.last.unlink()
    value, _ = of(run).read()
    assert value is not None
    assert value["progress"]["step"] == 1


def test_two_damaged_checkpoints_are_an_error_that_says_what_to_do(run: RunDir) -> None:
    checkpoints = of(run)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    flip(run.last, 0.5)
    flip(run.last_previous, 0.5)
    with pytest.raises(
        CheckpointError, match=r"(?s)no checkpoint of r can be read: .*last.pt.*last.prev.pt.*layl reset r --yes"
    ) as caught:
        of(run).read()
    assert caught.value.exit_code == 70


def test_a_checkpoint_of_a_newer_layl_is_refused_and_not_stepped_over(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = of(run)
    checkpoints.save(state(1))
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    checkpoints.save(state(2))
    monkeypatch.undo()
    with pytest.raises(UnknownFormatError, match=r"has format 99.*update layl, nothing was touched") as caught:
        of(run).read()
    assert caught.value.exit_code == 65


def test_candidates_hold_what_tools_need_and_best_its_score(run: RunDir) -> None:
    checkpoints = of(run)
    checkpoints.save_step(state(1234))
    checkpoints.save_best(state(1234), Scores(main=0.25, details={"cer": 0.25, "wer": 0.5}))
    candidate, best = checkpoint.read(run.step_file(1234)), checkpoint.read(run.best)
    assert run.step_file(1234).name == "step_0001234.pt"
    assert candidate.keys() == {"format", "model", "vocab", "step", "data_id", "valid_id"}
    assert best.keys() == {*candidate.keys(), "valid_score", "valid_cer"}
    assert (best["step"], best["valid_score"], best["valid_cer"]) == (1234, 0.25, 0.25)
    assert torch.equal(best["model"]["weight"], state(1234).model.state_dict()["weight"])


def test_the_oldest_candidates_beyond_the_number_kept_are_dropped_by_step(run: RunDir) -> None:
    checkpoints = of(run, keep=2)
    for step in (30, 9, 200):
        checkpoints.save_step(state(step))
    assert [path.name for path in run.step_files()] == ["step_0000030.pt", "step_0000200.pt"]


def broken(step: int) -> TrainState:
    made = state(step)
    with torch.no_grad():
        made.model.get_parameter("weight")[0, 1] = float("nan")
    return made


@pytest.mark.parametrize(
    "save", [lambda c, s: c.save(s), lambda c, s: c.save_step(s), lambda c, s: c.save_best(s, Scores(main=0.1))],
    ids=["last", "step", "best"],
)  # fmt: skip
def test_weights_with_nan_are_never_saved(run: RunDir, save) -> None:
    with pytest.raises(CheckpointError, match="the weights 'weight' hold NaN or infinity at step 3: not saved"):
        save(of(run), broken(3))
    assert not list(run.path.iterdir())


def test_what_lies_beyond_the_step_of_the_resume_is_forgotten(run: RunDir) -> None:
    checkpoints = of(run)
    for step in (4, 8, 12):
        checkpoints.save_step(state(step))
    checkpoints.save_best(state(12), Scores(main=0.1))
    assert not checkpoints.retract(8, best_step=4)
    assert [path.name for path in run.step_files()] == ["step_0000004.pt", "step_0000008.pt"]
    assert not run.best.exists()


def test_a_best_file_that_is_the_state_s_own_stands(run: RunDir) -> None:
    checkpoints = of(run)
    checkpoints.save_best(state(4), Scores(main=0.1))
    assert checkpoints.retract(8, best_step=4)
    assert run.best.exists()
    # no best yet: nothing to miss, and an old file is left to be written over
    assert checkpoints.retract(8, best_step=None)
    assert not checkpoints.retract(8, best_step=6)


def test_a_best_file_that_is_gone_or_damaged_does_not_stand(run: RunDir) -> None:
    checkpoints = of(run)
    assert checkpoints.retract(8, best_step=None)
    assert not checkpoints.retract(8, best_step=4)
    checkpoints.save_best(state(4), Scores(main=0.1))
    flip(run.best, 0.5)
    assert not checkpoints.retract(8, best_step=4)
