# layl: `make run` and `make test` are all that is needed; `make` alone lists the rest.
# Everything is installed into .venv/ here, by plain pip. PYTHON=python3.12 chooses another interpreter.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test check digits torture e2e prefect-up prefect-down clean

PYTHON ?=
DIGITS := george jackson lucas nicolas theo yweweler

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# some interpreters would look for packages outside .venv
unexport PYTHONHOME

say = @printf '%s\n' "layl: $(1)"

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r name text; do printf '%-18s %s\n' "$$name" "$$text"; done

run: .venv/installed-run ## install, then data -> training -> shipped model for the embedded sample (dvc repro); again = go on
	$(call say,dvc repro: prepare (makes the sample corpus) -> train -> export; Ctrl+C saves and the same command goes on)
	@$(dvc_without_git)
	@python -m dvc repro || { code=$$?; echo "layl: not done; the lines above say why. make run goes on from there." >&2; exit $$code; }
	$(call say,done: models/quran/ holds what ships; metrics/quran.json its scores; see also: layl status quran)

test: .venv/installed-test ## install with the test tools, then run the tests
	$(call say,pytest: one process at a time)
	@python -m pytest

check: .venv/installed-test ## lint, format, types, import contracts
	$(call say,ruff)
	@ruff check . && ruff format --check .
	$(call say,pyright)
	@pyright --pythonpath .venv/bin/python
	$(call say,import contracts)
	@lint-imports --no-cache

digits: .venv/installed-run ## real speech: six runs, each tested on the speaker it never heard, and their table
	@for speaker in $(DIGITS); do \
	  for stage in prepare train export; do \
	    printf '%s\n' "layl: $$stage digits-$$speaker"; layl $$stage digits-$$speaker; \
	  done; \
	done
	@python benchmarks/digits_table.py $(DIGITS:%=metrics/digits-%.json)
	$(call say,letters that differ between the ways to run the shipped files)
	@python -m benchmarks.agreement $(DIGITS:%=digits-%)

torture: .venv/installed-test ## kill a small run KILLS=200 times at random moments and compare it with one never touched
	@python -m tests.torture --kills $(or $(KILLS),200)

e2e: .venv/installed-test ## a real Prefect server and worker in a temporary folder, and what users fear: a table (ten minutes)
	@python -m tests.e2e

prefect-up: .venv/installed-run ## start a local Prefect server, pool and worker, and deploy; schedules you turned on stay on
	@python -m flows.local up

prefect-down: ## end that worker (a session is saved first) and server
	@python -m flows.local down

clean: ## remove .venv/ and caches of tools; runs/, data/, models/ and metrics/ stay
	rm -rf .venv .pytest_cache .hypothesis .ruff_cache .import_linter_cache *.egg-info build
	find . -path ./runs -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- how it is installed: a stamp is written only after pip succeeded, so an interrupted install is taken up again

.NOTPARALLEL:

# a .venv that came here with a moved or copied folder does not count
ifneq ($(shell [ "$$(cat .venv/made-in 2>/dev/null)" = "$$(pwd -P)" ] && [ -x .venv/bin/python ] && echo here),here)
.PHONY: .venv/installed-run .venv/installed-test
endif

.venv/installed-run: pyproject.toml
	@$(make_venv)
	$(call say,installing layl with its sample into .venv (some gigabytes the first time; minutes))
	@python -m pip install --editable '.[sample]'
	@touch $@

.venv/installed-test: pyproject.toml
	@$(make_venv)
	$(call say,installing layl with its sample and the test tools into .venv (some gigabytes the first time; minutes))
	@python -m pip install --editable '.[sample,dev]'
	@touch .venv/installed-run $@

# A .venv whose making was interrupted, or that was made elsewhere, is made anew.
define make_venv
if [ "$$(cat .venv/made-in 2>/dev/null)" != "$$(pwd -P)" ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then \
  rm -rf .venv; found=; for python in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.13 python3.12 python3 python); do \
    if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1; then \
      found="$$python"; break; fi; \
  done; \
  if [ -z "$$found" ]; then \
    echo "layl: needs Python 3.11, 3.12 or 3.13$(if $(PYTHON), and $(PYTHON) is none); name one: make run PYTHON=/path/to/python3.12" >&2; exit 1; fi; \
  echo "layl: making .venv with $$("$$found" --version) ($$found)"; \
  "$$found" -m venv .venv; pwd -P > .venv/made-in; \
fi
endef

# DVC looks for git. A copy without history says so in .dvc/config.local (ignored by git), and takes it back when
# the folder becomes a repository.
define dvc_without_git
if git rev-parse --git-dir >/dev/null 2>&1; then \
  if grep -qs no_scm .dvc/config.local; then python -m dvc config --local --unset core.no_scm; fi; \
elif ! grep -qs no_scm .dvc/config.local; then python -m dvc config --local core.no_scm true; fi
endef
