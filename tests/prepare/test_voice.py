from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.process
speaks = pytest.mark.skipif(importlib.util.find_spec("espeakng_loader") is None, reason="espeakng-loader is missing")


def request(text: str, voice: str = "ar", **changes: object) -> dict[str, object]:
    return {"text": text, "voice": voice, "rate": 170, "pitch": 50, "range": 50, **changes}


FEW = [request("قُلْ"), request("أَحَدٌ", "ar+f1"), request("لَمْ", "ar+klatt3"), request("يَلِدْ", "ar+m3", rate=140)]


def spoken(requests: list[dict[str, object]], *arguments: str) -> list[bytes | str]:
    lines = "".join(json.dumps(one) + "\n" for one in requests)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "prepare.voice", *arguments],
        input=lines.encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    replies: list[bytes | str] = []
    rest = done.stdout
    while rest:
        length = struct.unpack("<i", rest[:4])[0]
        data, rest = rest[4 : 4 + abs(length)], rest[4 + abs(length) :]
        replies.append(data if length >= 0 else data.decode())
    return replies


@speaks
def test_a_clip_is_the_same_whatever_was_said_before():
    forwards = spoken(FEW + FEW)
    backwards = spoken(FEW[::-1])[::-1]

    assert all(isinstance(data, bytes) and len(data) > 2 * 22_050 // 5 for data in forwards)
    assert forwards == backwards + backwards
    assert len(set(backwards)) == len(FEW)


@speaks
def test_a_voice_with_breath_does_not_hear_the_clock():
    breathing = [request("أَحَدٌ", "ar+f5")]
    now = spoken(breathing)
    # without a seed of ours espeak-ng takes the second of the day
    time.sleep(1.1)

    assert spoken(breathing) == now


@speaks
def test_a_fork_speaks_as_a_new_process_does():
    assert spoken(FEW[1:2], "--once") == spoken(FEW)[1:2]


@speaks
@pytest.mark.parametrize("change", [{"rate": 120}, {"pitch": 70}, {"range": 90}, {"voice": "ar+m1"}])
def test_every_part_of_a_request_is_heard(change):
    plain, changed = spoken([request("قُلْ هُوَ"), request("قُلْ هُوَ") | change])

    assert plain != changed


@speaks
def test_a_slower_rate_takes_longer():
    slow, fast = spoken([request("قُلْ هُوَ اللَّهُ أَحَدٌ", rate=rate) for rate in (110, 200)])

    assert len(slow) > 1.3 * len(fast)


@speaks
@pytest.mark.parametrize("voice", ["ar+nobody", "nolanguage"])
def test_an_unknown_voice_is_an_error_and_the_next_clip_is_spoken(voice):
    failed, fine = spoken([request("قُلْ", voice), FEW[0]])

    assert isinstance(failed, str) and repr(voice) in failed
    assert [fine] == spoken(FEW[:1])


@speaks
@pytest.mark.parametrize(
    ("broken", "problem"), [({"text": "قُلْ"}, "'voice'"), (request(""), "no sound for the text ''")]
)
def test_a_request_that_cannot_be_spoken_is_an_error(broken, problem):
    (failed,) = spoken([broken])

    assert isinstance(failed, str) and problem in failed


def test_nobody_imports_the_speaking_process():
    imports = "import sys, prepare.sample; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", imports], stdout=subprocess.PIPE, cwd=ROOT, check=True, text=True)

    assert not {"prepare.voice", "espeakng_loader"} & set(modules.stdout.split())
    assert "prepare.sample" in modules.stdout.split()
