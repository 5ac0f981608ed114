"""What a change between two sessions means, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.resume import Basis, Decision, Point, differences, reconcile

CLASSES: dict[str, dict[str, Any]] = {
    "free": {"train.num_workers": 0},
    "plan": {"train.max_batch_seconds": 300.0},
    "rewarm": {"train.lr": 1e-3, "augment.speed": [0.9, 1.1]},
    "fixed": {"model.width": 96},
}
BASIS = Basis(data_id="d1", valid_id="v1", steps_per_epoch=100, epochs=10, classes=CLASSES, symbols=("<blk>", "a", "b"))
#: In the middle of the third epoch of ten.
MID = Point(step=250, planned=1000, epoch=3, batch=50)
EDGE = Point(step=200, planned=1000, epoch=3, batch=0)
LAST = Point(step=950, planned=1000, epoch=10, batch=50)
DONE = Point(step=1000, planned=1000, epoch=11, batch=0)

NEW_DATA = replace(BASIS, data_id="d2", steps_per_epoch=120)


def changed(change: str, field: str, value: Any) -> Basis:
    return replace(BASIS, classes={**CLASSES, change: {**CLASSES[change], field: value}})


@pytest.mark.parametrize("point", [MID, EDGE, LAST, DONE])
def test_nothing_changed_changes_nothing(point: Point) -> None:
    assert reconcile(BASIS, BASIS, point) == Decision(planned=1000)


@pytest.mark.parametrize(
    ("point", "planned", "new_epoch"),
    [
        # the half-done third epoch ends at its 50 steps, seven of 120 follow
        (MID, 250 + 7 * 120, True),
        # at an edge no epoch is lost: all eight that are left
        (EDGE, 200 + 8 * 120, False),
        # before the first step nothing is lost either
        (Point(step=0, planned=1000, epoch=1, batch=0), 10 * 120, False),
        # in the last epoch, nothing would be left for the new data: a fifth of the run follows
        (LAST, 950 + 200, True),
        # a finished run is opened again for a fifth of its length
        (DONE, 1000 + 200, False),
        (Point(step=1000, planned=1000, epoch=10, batch=30), 1000 + 200, True),
    ],
    ids=[
        "in an epoch",
        "at its edge",
        "before the first step",
        "in the last epoch",
        "finished",
        "finished in an epoch",
    ],
)
def test_new_training_data_begins_the_next_epoch_and_warms_up(point: Point, planned: int, new_epoch: bool) -> None:
    decision = reconcile(BASIS, NEW_DATA, point, "+1,204 -3 ~17 clips")
    assert decision == Decision(
        planned=planned, new_epoch=new_epoch, rewarm="data changed: +1,204 -3 ~17 clips", reset_best=False
    )


TRAINED = replace(BASIS, trained=frozenset({1, 2, 3}))
HELD = {2: "reader ann", 3: "reader ben", 9: "reader cid"}


@pytest.mark.parametrize("point", [MID, EDGE, LAST, DONE])
def test_who_was_trained_on_and_is_held_out_now_is_refused_by_name(point: Point) -> None:
    decision = reconcile(TRAINED, replace(NEW_DATA, held_out=HELD), point)
    assert decision.seen == ("reader ann", "reader ben")
    (sentence,) = decision.refused
    assert sentence.startswith("reader ann, reader ben: trained on before") and "train.allow_seen" in sentence


def test_who_was_trained_on_may_be_allowed_and_is_then_said() -> None:
    allowed = replace(NEW_DATA, held_out=HELD, allow_seen=True)
    decision = reconcile(TRAINED, allowed, MID)
    plain = reconcile(TRAINED, NEW_DATA, MID)
    assert not decision.refused and decision.seen == ("reader ann", "reader ben")
    assert any("seen_in_training" in note and "reader ann, reader ben" in note for note in decision.notes)
    assert replace(decision, notes=(), seen=()) == replace(plain, notes=())


def test_who_is_held_out_and_was_never_trained_on_is_nothing_to_say() -> None:
    now = replace(BASIS, held_out={9: "reader cid"})
    assert reconcile(TRAINED, now, MID) == Decision(planned=1000)
    # before the first step nobody was trained on
    start = Point(step=0, planned=1000, epoch=1, batch=0)
    assert not reconcile(TRAINED, replace(BASIS, held_out=HELD), start).refused


def test_new_data_whose_rows_are_not_known_is_said_without_counts() -> None:
    assert reconcile(BASIS, NEW_DATA, MID).rewarm == "data changed"


@pytest.mark.parametrize(("after_change", "more"), [(0.2, 200), (0.5, 500), (0.05, 120), (1e-9, 120)])
def test_a_finished_run_goes_on_for_a_part_of_its_length_and_at_least_one_epoch(after_change: float, more: int) -> None:
    assert reconcile(BASIS, replace(NEW_DATA, after_change=after_change), DONE).planned == 1000 + more


def test_a_finished_run_may_take_no_step_on_new_data_and_says_so() -> None:
    decision = reconcile(BASIS, replace(NEW_DATA, after_change=0), DONE, "+1 -0 ~0 clips")
    assert (decision.planned, decision.rewarm) == (1000, None)
    assert decision.notes == (
        "data changed: +1 -0 ~0 clips; train.after_change is 0: the finished run takes no step on it",
    )


def test_new_data_in_the_last_epoch_with_no_further_steps_wanted_finishes_with_a_message() -> None:
    decision = reconcile(BASIS, replace(NEW_DATA, after_change=0), LAST)
    assert (decision.planned, decision.rewarm) == (950, None)
    assert decision.notes == ("already beyond the new length of 950 steps: the run finishes here",)


@pytest.mark.parametrize("steps", [None, 1000], ids=["epochs", "steps"])
def test_a_run_that_was_opened_again_keeps_its_further_steps_in_the_next_session(steps: int | None) -> None:
    saved, now = replace(BASIS, steps=steps), replace(NEW_DATA, steps=steps)
    planned = reconcile(saved, now, DONE).planned
    opened = Point(step=1050, planned=planned, epoch=11, batch=50)
    assert planned == 1200
    assert reconcile(now, now, opened) == Decision(planned=1200)
    # and new data again: from where it is
    assert reconcile(now, replace(now, data_id="d3"), opened).planned == 1050 + 240


@pytest.mark.parametrize(
    ("now", "planned", "rewarm"),
    [
        (replace(BASIS, epochs=20), 2000, "length changed 1,000 -> 2,000 steps"),
        (replace(BASIS, epochs=5), 500, "length changed 1,000 -> 500 steps"),
        (replace(BASIS, epochs=10.4), 1040, None),
        (replace(BASIS, epochs=9.6), 960, None),
        (replace(BASIS, epochs=10.5), 1050, None),
        (replace(BASIS, epochs=10.51), 1051, "length changed 1,000 -> 1,051 steps"),
        (replace(BASIS, epochs=9.49), 949, "length changed 1,000 -> 949 steps"),
        (replace(BASIS, steps=12_000), 12_000, "length changed 1,000 -> 12,000 steps"),
        (replace(BASIS, steps=1_020), 1_020, None),
        # other batches: the running epoch counts as it will be, 8 epochs of 150 from where it began
        (replace(BASIS, steps_per_epoch=150), 200 + 8 * 150, "length changed 1,000 -> 1,400 steps"),
    ],
)
def test_a_length_that_moves_by_more_than_a_twentieth_warms_up(now: Basis, planned: int, rewarm: str | None) -> None:
    assert reconcile(BASIS, now, MID) == Decision(planned=planned, rewarm=rewarm)


def test_named_steps_do_not_mind_how_long_an_epoch_is() -> None:
    saved = replace(BASIS, steps=1000)
    assert reconcile(saved, replace(saved, steps_per_epoch=150, epochs=99), MID) == Decision(planned=1000)
    assert reconcile(saved, replace(saved, steps=2000), MID).planned == 2000
    # back to epochs
    assert reconcile(saved, replace(saved, steps=None), MID) == Decision(planned=1000)


def test_new_data_leaves_named_steps_as_they_are() -> None:
    decision = reconcile(replace(BASIS, steps=1000), replace(NEW_DATA, steps=1000), MID)
    assert decision == Decision(planned=1000, new_epoch=True, rewarm="data changed")


@pytest.mark.parametrize(
    ("now", "point", "length"),
    [
        (replace(BASIS, epochs=2), MID, 200),
        (replace(BASIS, epochs=2.5), MID, 250),
        (replace(BASIS, steps=100), MID, 100),
        (replace(BASIS, epochs=5), DONE, 500),
        (replace(NEW_DATA, epochs=2), MID, 250 - 120),
        (replace(NEW_DATA, steps=200), Point(step=250, planned=300, epoch=3, batch=50), 200),
    ],
)
def test_a_run_beyond_its_new_length_finishes_where_it_is_and_says_so(now: Basis, point: Point, length: int) -> None:
    saved = replace(BASIS, steps=300) if now.steps == 200 else BASIS
    decision = reconcile(saved, now, point)
    assert (decision.planned, decision.rewarm) == (point.step, None)
    assert decision.notes == (f"already beyond the new length of {length:,} steps: the run finishes here",)


def test_a_finished_run_may_be_lengthened() -> None:
    # by however little: it has to train again
    assert reconcile(BASIS, replace(BASIS, epochs=10.1), DONE) == Decision(
        planned=1010, rewarm="length changed 1,000 -> 1,010 steps"
    )


@pytest.mark.parametrize("point", [MID, EDGE, DONE])
def test_new_validation_data_resets_the_best_and_trains_nothing(point: Point) -> None:
    decision = reconcile(BASIS, replace(BASIS, valid_id="v2"), point)
    assert decision == Decision(
        planned=1000, reset_best=True, notes=("validation data changed: the best score begins anew",)
    )


def test_a_free_field_changes_nothing_here() -> None:
    assert reconcile(BASIS, changed("free", "train.num_workers", 8), MID) == Decision(planned=1000)


def test_a_plan_field_applies_from_the_next_epoch_and_is_said() -> None:
    decision = reconcile(BASIS, changed("plan", "train.max_batch_seconds", 60.0), MID)
    assert decision == Decision(planned=1000, notes=("from the next epoch: train.max_batch_seconds: 300.0 -> 60.0",))


def test_a_rewarm_field_warms_up_and_is_said() -> None:
    assert reconcile(BASIS, changed("rewarm", "train.lr", 5e-4), MID) == Decision(
        planned=1000, rewarm="train.lr: 0.001 -> 0.0005"
    )
    assert reconcile(BASIS, changed("rewarm", "train.lr", 5e-4), DONE) == Decision(planned=1000)


def test_several_reasons_stand_in_one_sentence() -> None:
    now = replace(changed("rewarm", "train.lr", 5e-4), data_id="d2")
    assert reconcile(BASIS, now, MID).rewarm == "data changed; train.lr: 0.001 -> 0.0005"
    longer = replace(changed("rewarm", "train.lr", 5e-4), epochs=20)
    assert reconcile(BASIS, longer, MID).rewarm == "length changed 1,000 -> 2,000 steps; train.lr: 0.001 -> 0.0005"


@pytest.mark.parametrize("point", [MID, DONE])
def test_a_fixed_field_is_refused_whatever_else_changed(point: Point) -> None:
    now = replace(changed("fixed", "model.width", 128), data_id="d2", valid_id="v2", epochs=3)
    decision = reconcile(BASIS, now, point)
    assert decision == Decision(planned=1000, refused=("model.width: 96 -> 128",))


def test_another_vocabulary_is_refused_and_its_symbols_named() -> None:
    decision = reconcile(BASIS, replace(BASIS, symbols=("<blk>", "a", "c", "d")), MID)
    assert decision.refused == ("vocabulary: 3 -> 4 symbols (gone: b; new: c d)",)
    # the same symbols in another order are other outputs
    assert reconcile(BASIS, replace(BASIS, symbols=("<blk>", "b", "a")), MID).refused


def test_a_field_that_one_side_does_not_know_counts_as_unchanged() -> None:
    newer = replace(BASIS, classes={**CLASSES, "fixed": {**CLASSES["fixed"], "model.new": 7}, "rewarm": {}})
    assert reconcile(BASIS, newer, MID) == Decision(planned=1000)
    assert reconcile(newer, BASIS, MID) == Decision(planned=1000)
    assert reconcile(replace(BASIS, classes={}), BASIS, MID) == Decision(planned=1000)


def test_differences_are_sorted_and_none_is_a_word() -> None:
    assert differences({"b": None, "a": 1, "c": 3}, {"a": 2, "b": 4, "d": 5}) == ("a: 1 -> 2", "b: none -> 4")


@given(
    st.sampled_from(["d1", "d2"]), st.floats(0.1, 30), st.none() | st.integers(1, 3000), st.integers(1, 300),
    st.integers(0, 1200), st.floats(0, 2),
)  # fmt: skip
def test_no_change_takes_a_step_back_or_warms_up_for_nothing(
    data: str, epochs: float, steps: int | None, held: int, step: int, after_change: float
) -> None:
    point = Point(step=step, planned=1000, epoch=step // 100 + 1, batch=step % 100)
    now = replace(BASIS, data_id=data, epochs=epochs, steps=steps, steps_per_epoch=held, after_change=after_change)
    decision = reconcile(BASIS, now, point)
    assert decision.planned >= step
    assert not (decision.rewarm and decision.planned == step)
    assert decision.new_epoch == (data == "d2" and point.batch > 0)
