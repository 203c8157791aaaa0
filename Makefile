# One way to run things: people and CI call the same targets.
#
# Each target makes the virtual environment it needs. A stamp file in .venv says what was installed, so a second call
# does nothing; pyproject.toml newer than the stamp installs again. Settable: PYTHON, TORCH, WORKERS, and ARGS for pytest.

PYTHON ?= python3
# The version that is tested. Installed first and by itself, so that no other package chooses a torch for us.
TORCH  ?= torch==2.13.0
ARGS   ?=
# Pinned versions of everything else, for the Pythons that have such a file; `CONSTRAINTS=` installs the newest.
CONSTRAINTS ?= $(wildcard constraints-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt)
# Test processes side by side; each needs a /dev/shm of its own, and so root, or a user namespace. Most tests wait for
# processes, not for a core: four of them took 8 min 1 s on two cores, three 8 min 59 s.
OWN_SHM := unshare --mount mount -t tmpfs tmpfs /dev/shm 2>/dev/null
OF_USER := unshare --user --map-current-user --keep-caps
NAMESPACE := $(shell $(OWN_SHM) || { $(OF_USER) $(OWN_SHM) && echo $(OF_USER); })
WORKERS ?= $(shell $(NAMESPACE) $(OWN_SHM) && echo 4 || echo 0)

# The kernel core (C++): built with the installation, and again when one of these changed.
NATIVE := setup.py $(wildcard src/holdfast/straggler/kernels/native/*)

VENV := .venv
BIN  := $(VENV)/bin
# Bytecode is written, whatever the environment says (CI's says no): the tests start hundreds of launchers, and one that
# compiles our modules anew needs a tenth of a second more of a core. What is skipped is listed at the end, with what is
# missing for it.
PYTEST = $(if $(filter-out 0,$(WORKERS)),$(NAMESPACE)) env PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -rs -n $(WORKERS) --dist worksteal
PIP  := $(BIN)/python -m pip --disable-pip-version-check install --quiet --quiet $(CONSTRAINTS:%=--constraint %)

.PHONY: help demo check matrix gpu simulate test test-all test-cold test-nemo test-engines soak nvrx lint format coverage constraints dist bench compare faults reference pictures docs clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo    train a small model through a hang and a kill -9 (under 2 minutes, installation aside)'
	@echo 'make check   pure tests, and real jobs with a hang, a restart and a preemption (90 s, no root)'
	@echo 'make test    these, and what docs/regressions.md lists, with real processes; make test-all    also variants'
	@echo 'make matrix  jobs on each supported torch, into docs/versions.md (25 GB); VERSIONS="2.8.0" for some of them'
	@echo 'make gpu     what needs an NVIDIA GPU (8 minutes, no network); docs/gpu.md'
	@echo 'make simulate    the node controllers of simulated jobs with faults; ARGS="--seeds 0:1000"'
	@echo 'make test-cold    those of the launcher once more, without warm start'
	@echo 'make test-nemo, make test-engines    those with NeMo-Run; with TorchX and the models of Kubeflow'
	@echo 'make nvrx    NVRx 0.4.1 in an environment of its own: `make test` then tests the exchange of files with it'
	@echo 'make soak    minutes of repeated failures'
	@echo 'make lint    ruff, mypy --strict, spelling and words; `make format` fixes what ruff can'
	@echo 'make coverage    lines that the quick tests of processes run, in subprocesses too (docs/coverage.md)'
	@echo 'make dist    wheels and source distribution into dist/, installed and started in an empty environment'
	@echo 'make constraints    write the installed versions into constraints-X.Y.txt'
	@echo 'make bench   the figures of docs/benchmarks.md'
	@echo 'make compare this launcher beside torchrun and NVRx, into docs/compare.md (ten minutes)'
	@echo 'make faults  the corpus of faults, scored, into docs/reference/fault-results.md (about an hour); ARGS=-l shows what there is'
	@echo 'make reference   docs/reference/ from the code; `make docs` the documentation into site/'
	@echo 'make pictures    docs/images: the pages of an incident and of goodput, the map of stragglers (Chromium)'
	@echo 'make clean   remove .venv and everything that was built'

demo: $(VENV)/.core
	@$(BIN)/python examples/demo.py

check: $(VENV)/.check
	@$(BIN)/python -m pytest -q --check -m 'not soak and not variant' tests $(ARGS)

# Each torch in an environment of its own under build/.
matrix: $(VENV)/.core
	@$(BIN)/python -m tests.versions.matrix $(VERSIONS)

# $(PYTHON) must have torch with CUDA. The command creates an environment of its own.
gpu:
	@PYTHONPATH=src $(PYTHON) -m tests.gpu $(ARGS)

test: $(VENV)/.native
	@$(PYTEST) -m 'not soak and not variant' --regressions $(ARGS)

# New examples of property tests each time.
test-all: $(VENV)/.native
	@$(PYTEST) -m 'not soak' --hypothesis-profile=explore $(ARGS)

# The node controllers of simulated jobs; ARGS: --seeds A:B --nodes N --minutes M.
simulate: $(VENV)/.check
	@$(BIN)/python -m tests.simulation $(ARGS)

# Every rank started as with torchrun, for what starts ranks. (Those of the monitor start them so in any case.)
test-cold: $(VENV)/.native
	@PET_FT_WARM_START=off $(PYTEST) -m 'not soak and not variant' tests/launcher $(ARGS)

# NeMo-Run brings half a gigabyte, and takes the places of TorchX's schedulers: an environment for each.
test-nemo: .venv-nemo/.installed
	@.venv-nemo/bin/python -m pytest -q -m 'not soak' tests/integrations/nemo_run $(ARGS)

test-engines: .venv-engines/.installed
	@.venv-engines/bin/python -m pytest -q -m 'not soak' tests/integrations/torchx tests/integrations/kubernetes $(ARGS)

soak: $(VENV)/.native
	@$(BIN)/python -m pytest -q -m soak $(ARGS)

# Under build/, which `make clean` removes. The benchmarks install it when they need it.
nvrx: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.environments

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/codespell
	@$(BIN)/python scripts/check_words.py

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# ARGS: the tests to run.
coverage: ARGS = -m 'not soak and not slow and not variant' tests/launcher tests/monitor tests/journal tests/autoresume
coverage: $(VENV)/.native
	@rm -rf build/coverage && mkdir -p build/coverage
	@PYTHONDONTWRITEBYTECODE= $(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

dist: $(VENV)/.dev
	@$(BIN)/python scripts/build_dist.py

# Not torch and what it brings with CUDA. The first two lines of the file stay.
constraints: $(VENV)/.docs
	@head -n 2 $(CONSTRAINTS) >build/constraints
	@$(BIN)/python -m pip freeze --all --exclude-editable | grep -vE '^(torch|triton|pip|holdfast|nvidia-(cu|nccl|nv)[a-z0-9-]*)(==| @)|^#| @ ' >>build/constraints
	@mv build/constraints $(CONSTRAINTS)

bench: $(VENV)/.native
	@$(BIN)/python benchmarks/run.py $(ARGS)

compare: $(VENV)/.native
	@$(BIN)/python -m benchmarks.compare $(ARGS)

# Also what other launchers make of the same faults; a part, as with ARGS='-o sleep', leaves the page alone.
faults: $(VENV)/.native
	@$(BIN)/python -m benchmarks.faults $(ARGS)

# docs/images by Chromium, and the diagrams.
pictures: $(VENV)/.dev
	@$(BIN)/python scripts/pictures.py
	@$(BIN)/python scripts/diagrams.py

# From the code. docs/reference/phases.md comes from simulated jobs: `python -m tests.simulation.golden`.
reference: $(VENV)/.core
	@$(BIN)/python -m scripts.reference

# The variable silences a notice about another tool, which is not about this site.
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) .venv-nemo .venv-engines build compat/build dist site .pytest_cache .hypothesis .mypy_cache .ruff_cache src/*.egg-info compat/src/*.egg-info
	rm -f src/holdfast/straggler/kernels/*.so

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("holdfast needs Python 3.10 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.created
	$(PIP) '$(TORCH)'
	@touch $@

# numpy, because torch warns in the middle of the demo where it is missing.
$(VENV)/.core: pyproject.toml $(VENV)/.torch
	$(PIP) --editable '.[torch]' numpy
	@touch $@

$(VENV)/.check: $(VENV)/.core
	$(PIP) --editable '.[torch,test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[torch,dev]'
	@touch $@

# Tests and figures are of the core too, where there is a compiler.
$(VENV)/.native: $(NATIVE) $(VENV)/.dev
	$(PIP) --no-deps --editable .
	@touch $@

# After .dev, so that `make -j` never runs two installations at once in one environment.
$(VENV)/.docs: $(VENV)/.dev
	$(PIP) --editable '.[torch,docs]'
	@touch $@

.venv-nemo/.installed: EXTRAS = torch,nemo-run,test
.venv-engines/.installed: EXTRAS = torch,engines,test
.venv-nemo/.installed .venv-engines/.installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --quiet '$(TORCH)'
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --quiet --editable '.[$(EXTRAS)]'
	@touch $@
