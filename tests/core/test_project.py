from __future__ import annotations

import pytest

from core.errors import ConfigError
from core.project import known_run, named_run, read_run
from core.run_dir import RunDir

SAMPLE = "data: {sources: [{kind: sample}]}\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quran.yaml").write_text(SAMPLE)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../quran", "a\\b", ".locks", "-x", "_x", "a b", "a.b", "archive", "Archive", "C:", "a\n"],
)
def test_a_name_that_could_leave_its_folder_is_refused(root, name):
    with pytest.raises(ConfigError, match="no name for a run"):
        named_run(root, name)
    with pytest.raises(ConfigError, match="no name for a run"):
        read_run(root, name)


@pytest.mark.parametrize("name", ["quran", "quran-16m", "a_1", "قرآن", "7"])
def test_ordinary_names_are_runs(root, name):
    assert named_run(root, name) == RunDir(root, name)


def test_an_unknown_run_lists_the_known_ones_and_the_nearest(root):
    (root / "configs" / "digits.yaml").write_text(SAMPLE)
    for look_up in (known_run, read_run):
        with pytest.raises(ConfigError, match="known runs: digits, quran; did you mean quran") as error:
            look_up(root, "qurna")
        assert error.value.exit_code == 65


def test_a_directory_without_configuration_is_known_but_cannot_be_read(root):
    (root / "runs" / "old").mkdir(parents=True)
    assert known_run(root, "old").name == "old"
    with pytest.raises(ConfigError, match="there is no"):
        read_run(root, "old")


def test_a_run_is_called_as_its_file_unless_the_file_says_otherwise(root):
    (root / "configs" / "night.yaml").write_text("extends: named.yaml\n")
    (root / "configs" / "named.yaml").write_text("name: Suras by night\n" + SAMPLE)
    assert read_run(root, "quran")[1].name == "quran"
    run, config = read_run(root, "named")
    assert (config.name, run.path.name) == ("Suras by night", "named")
    assert read_run(root, "night")[1].name == "night"
    assert read_run(root, "named", ["name=other"])[1].name == "other"


def test_overrides_are_applied_and_checked(root):
    assert read_run(root, "quran", ["train.epochs=3"])[1].train.epochs == 3
    with pytest.raises(ConfigError, match=r"did you mean train\.epochs"):
        read_run(root, "quran", ["train.epoch=3"])


@pytest.mark.parametrize("recipe", ["poetry", "[speech]", "3"])
def test_an_unknown_recipe_names_the_known_ones(root, recipe):
    with pytest.raises(ConfigError, match=r"recipe: .*; known: speech"):
        read_run(root, "quran", [f"recipe={recipe}"])
