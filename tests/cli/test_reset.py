from __future__ import annotations

import pytest

from cli.main import app
from core.lock import hold
from core.run_dir import RunDir


@pytest.fixture
def trained(project):
    run = RunDir(project, "quran")
    run.path.mkdir(parents=True)
    run.last.write_text("weights")
    return run


def test_without_yes_nothing_happens(trained, cli):
    for flags in ([], ["--purge"]):
        result = cli.invoke(app, ["reset", "quran", *flags])
        assert result.exit_code == 2 and "--yes" in result.stderr
        assert trained.last.exists()


def test_each_archive_has_a_number_of_its_own(trained, cli):
    cli.invoke(app, ["reset", "quran", "--yes"])
    trained.path.mkdir()
    cli.invoke(app, ["reset", "quran", "--yes"])
    assert sorted(p.name for p in trained.archive.iterdir()) == ["quran-1", "quran-2"]
    assert (trained.archive / "quran-1" / "last.pt").read_text() == "weights"
    assert not trained.path.exists()


def test_purge_removes_for_good(trained, cli):
    assert cli.invoke(app, ["reset", "quran", "--yes", "--purge"]).exit_code == 0
    assert not trained.path.exists() and not trained.archive.exists()


def test_a_held_run_is_left_alone(trained, cli):
    with hold(trained):
        assert cli.invoke(app, ["reset", "quran", "--yes", "--purge"]).exit_code == 69
    assert trained.last.exists()


def test_a_run_without_directory_is_no_error(project, cli):
    assert cli.invoke(app, ["reset", "quran", "--yes"]).exit_code == 0


def test_a_run_whose_configuration_is_gone_can_still_be_put_aside(trained, cli):
    trained.config_file.unlink()
    assert cli.invoke(app, ["reset", "quran", "--yes"]).exit_code == 0
    assert (trained.archive / "quran-1").is_dir()
