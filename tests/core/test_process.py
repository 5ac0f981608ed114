from __future__ import annotations

import os
import subprocess
import sys

import pytest

from core.process import Mark, boot_id, is_alive, mark_of, owner_facts, owner_is_alive


def test_a_mark_goes_over_a_command_line_and_back():
    mark = Mark(123, 1700000000.25)
    assert str(mark) == "123:1700000000.25" and Mark.parse(str(mark)) == mark
    assert is_alive(Mark.parse(str(mark_of())))


@pytest.mark.parametrize("text", ["", "12", "a:1", "1:b"])
def test_what_is_no_mark_is_a_value_error(text):
    with pytest.raises(ValueError):
        Mark.parse(text)


def test_a_reused_pid_is_somebody_else():
    mark = mark_of()
    assert mark.pid == os.getpid()
    assert not is_alive(Mark(mark.pid, mark.start_time - 60))


@pytest.mark.process
def test_a_process_that_ended_is_dead_even_before_its_parent_looks():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    mark = mark_of(child.pid)
    assert is_alive(mark)
    assert child.stdin is not None
    child.kill()
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(mark)
    child.wait()
    child.stdin.close()
    assert not is_alive(mark)


def test_an_owner_is_alive_as_long_as_its_very_process():
    owner = owner_facts("shell", "s")
    assert owner_is_alive(owner)
    assert not owner_is_alive({**owner, "start_time": owner["start_time"] - 60})


@pytest.mark.parametrize("owner", [None, {}, {"pid": 1}, {"pid": "x", "start_time": 0}, {"pid": None, "start_time": 0}])
def test_an_owner_without_a_process_is_dead(owner):
    assert not owner_is_alive(owner)


def test_an_owner_of_another_boot_is_dead_and_one_of_another_host_is_believed():
    owner = owner_facts("shell", "s")
    assert not owner_is_alive({**owner, "boot_id": "another"}) or not boot_id()
    assert owner_is_alive({**owner, "boot_id": ""})
    assert owner_is_alive({**owner, "host": "elsewhere", "start_time": 0.0})
