from __future__ import annotations

import sys
import types

import pytest

from cli.main import app
from core.errors import BusyError, ExportRefused
from core.lock import hold
from core.run_dir import RunDir


def stage(monkeypatch, module, function, body):
    made = types.ModuleType(module)
    setattr(made, function, body)
    monkeypatch.setitem(sys.modules, module, made)


def test_help_names_every_command(cli):
    shown = cli.invoke(app, ["--help"]).output
    for name in ("prepare", "train", "stop", "status", "export", "transcribe", "reset"):
        assert f"\n  {name} " in shown
        assert cli.invoke(app, [name, "--help"]).output.count(f"layl {name}") >= 2


def test_version_says_layl(cli):
    result = cli.invoke(app, ["--version"])
    assert result.exit_code == 0 and result.output.startswith("layl")


def test_an_unknown_run_is_exit_65_and_names_the_nearest(project, cli):
    result = cli.invoke(app, ["status", "qurna"])
    assert result.exit_code == 65
    assert "did you mean quran?" in result.stderr
    assert result.stdout == ""


def test_an_error_for_people_has_no_traceback_and_its_own_exit_code(project, cli, monkeypatch):
    def refuse(run, config, *, unfinished, report):
        raise ExportRefused("int8 loses too much")

    stage(monkeypatch, "export.pipeline", "export", refuse)
    result = cli.invoke(app, ["export", "quran"])
    assert (result.exit_code, result.stderr) == (73, "int8 loses too much\n")


def test_any_other_error_keeps_its_traceback(project, cli, monkeypatch):
    def fail(run, config, *, strict, report):
        raise ZeroDivisionError("ours")

    stage(monkeypatch, "prepare.pipeline", "prepare", fail)
    assert isinstance(cli.invoke(app, ["prepare", "quran"]).exception, ZeroDivisionError)


@pytest.mark.parametrize(("command", "module"), [("prepare", "prepare.pipeline"), ("export", "export.pipeline")])
def test_ctrl_c_is_one_line_and_exit_130(project, cli, monkeypatch, command, module):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    stage(monkeypatch, module, command, interrupted)
    result = cli.invoke(app, [command, "quran"])
    assert result.exit_code == 130
    assert len(result.stderr.strip().splitlines()) == 1


def test_prepare_passes_the_run_its_config_and_strictness(project, cli, monkeypatch):
    seen = []

    def prepare(run, config, *, strict, report):
        seen.append((run, config.data.max_drop_share, strict))
        report("two readers")

    stage(monkeypatch, "prepare.pipeline", "prepare", prepare)
    result = cli.invoke(app, ["prepare", "quran", "--strict", "--set", "data.max_drop_share=0.5"])
    assert seen == [(RunDir(project, "quran"), 0.5, True)]
    assert result.output == "two readers\n"


def test_the_project_is_named_when_it_is_elsewhere(project, cli, monkeypatch):
    stage(monkeypatch, "prepare.pipeline", "prepare", lambda *_, **__: None)
    (project / "deep").mkdir()
    monkeypatch.chdir(project / "deep")
    assert cli.invoke(app, ["prepare", "quran"]).stderr == f"project: {project}\n"


def test_export_holds_the_lock_while_it_works(project, cli, monkeypatch):
    run = RunDir(project, "quran")

    def export(directory, config, *, unfinished, report):
        with pytest.raises(BusyError, match="in use"), hold(run):
            pass

    stage(monkeypatch, "export.pipeline", "export", export)
    assert cli.invoke(app, ["export", "quran"]).exit_code == 0


@pytest.mark.parametrize(
    ("options", "as_it_is"),
    [([], True), (["--frontend", "dvc"], False), (["--frontend", "dvc", "--unfinished"], True)],
)
def test_only_a_dvc_stage_refuses_a_run_with_steps_left(project, cli, monkeypatch, options, as_it_is):
    asked = []
    stage(monkeypatch, "export.pipeline", "export", lambda *_, unfinished, **__: asked.append(unfinished))
    assert cli.invoke(app, ["export", "quran", *options]).exit_code == 0
    assert asked == [as_it_is]


def test_export_of_a_held_run_is_exit_69_and_does_nothing(project, cli, monkeypatch):
    called = []
    stage(monkeypatch, "export.pipeline", "export", lambda *_, **__: called.append(1))
    with hold(RunDir(project, "quran")):
        result = cli.invoke(app, ["export", "quran", "--unfinished"])
    assert result.exit_code == 69 and "quran is in use" in result.stderr
    assert called == []
