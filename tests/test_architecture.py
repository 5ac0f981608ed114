"""The house itself: who imports whom, what every setting says, and that documents name only what exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import unicodedata
from pathlib import Path

import pytest
import typer
from importlinter.cli import lint_imports

from cli.main import app
from core.config import RunSection, Section, build, change_classes, read_fields, read_yaml, setting
from core.speech.config import SpeechRun

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def code_spans(document: Path) -> list[str]:
    """Every line of a fenced block and every inline code span."""
    text = document.read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^ *```\w*\n.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line.split("  #")[0] for block in blocks for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", prose)


def commands(first: str) -> list[tuple[str, str]]:
    """(document, command line) of each command in the documents that begins with ``first``."""
    return [
        (document.name, span.strip())
        for document in DOCUMENTS
        for span in code_spans(document)
        if re.match(rf"(?:\w+=\S+ )*{first} ", span.strip())
    ]


def anchor(heading: str) -> str:
    """A heading's address on a page, as GitHub makes it."""
    plain = "".join(ch for ch in heading.lower() if ch in " -_" or unicodedata.category(ch)[0] in "LN")
    return plain.strip().replace(" ", "-")


def test_the_import_contracts_hold(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert not failed, capsys.readouterr().out


@pytest.mark.process
def test_the_command_line_starts_without_torch_prefect_or_dvc() -> None:
    heavy = "{'torch', 'torchaudio', 'onnxruntime', 'matplotlib', 'prefect', 'dvc', 'sqlalchemy'}"
    script = f"import sys, cli.main, tasks.supervise; print(sorted({heavy} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_every_package_of_the_house_is_installed() -> None:
    stages = PYPROJECT["tool"]["importlinter"]["root_packages"]
    found = {
        init.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for stage in stages
        for init in (ROOT / stage).rglob("__init__.py")
    }
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(stages)


@pytest.mark.parametrize("section", [SpeechRun])
def test_every_setting_says_what_it_means_and_what_a_change_of_it_does(section: type[RunSection]) -> None:
    silent = []

    def walk(kind: type[Section], path: str) -> None:
        for name, info in kind.model_fields.items():
            extra = info.json_schema_extra
            if isinstance(extra, dict) and "change" in extra and not info.description:
                silent.append(f"{path}{name}")
        for inner in kind.__subclasses__():
            walk(inner, f"{inner.__name__}.")

    walk(Section, "")
    assert silent == []
    assert set(change_classes(section).values()) <= {"free", "plan", "rewarm", "fixed"}


def test_a_setting_without_a_change_class_is_refused() -> None:
    class Careless(Section):
        said: int = setting(1, "free", "a number")
        unsaid: int = 1

    with pytest.raises(KeyError, match=r"Careless\.unsaid"):
        change_classes(Careless)


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "configs").glob("*.yaml"))])
def test_every_configuration_is_valid(name: str) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    build(SpeechRun, read_fields(path), path.name)


def test_dvc_watches_only_parameters_that_a_run_spells_out_itself() -> None:
    pipeline = read_yaml(ROOT / "dvc.yaml")
    missing = []
    for stage, said in pipeline["stages"].items():
        for run in pipeline["vars"][0]["runs"]:
            fields = read_yaml(ROOT / "configs" / f"{run}.yaml")
            for names in said["params"][0].values():
                for name in names:
                    value = fields
                    for part in name.split("."):
                        value = value.get(part) if isinstance(value, dict) else None
                    if value is None:
                        missing.append(f"{stage}@{run}: configs/{run}.yaml has no {name}")
    assert missing == []


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {(document, line.split()[1]) for document, line in commands("make")}
    assert {target for _, target in named} >= {"run", "test"}
    assert {(document, target) for document, target in named if target not in targets} == set()


def test_every_layl_command_and_option_in_the_documents_exists() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    wrong = []
    lines = [(d, line) for d, line in commands("layl") if "COMMAND" not in line]
    for document, line in lines:
        words = line[line.index("layl ") :].split()
        command = known.get(words[1])
        options = {option for parameter in getattr(command, "params", ()) for option in parameter.opts}
        wrong += [f"{document}: {line}" for word in words[2:] if word.startswith("--") and word not in options]
        if command is None:
            wrong.append(f"{document}: {line}")
    assert lines
    assert wrong == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "mailto:")):
            continue
        path, _, fragment = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists():
            dead.append(target)
        elif fragment:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            if fragment not in map(anchor, headings):
                dead.append(target)
    assert dead == []
