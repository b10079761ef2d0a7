# make run    the study in config.yaml, or a bundled one:  make run STUDY=pep_fedpt/table1
# make report the same, and results/report/<study>.html: tables, curves, figures, and all runs
# make smoke  all bundled studies, shrunk, on made-up images; or one:  make smoke STUDY=pfpt/table1
# make test   make lint, and all tests; one of them builds the documentation
# make fast   make lint, and the tests without whole workflows: before a commit
# make lint   style, spelling, types, import contract: seconds
# make docs   the documentation as a site, in results/site
# make bench  timings relative to other tools, and a roofline: minutes on idle cores
# make real   the studies on photographs with a ViT-S/14: hours on two cores
# make kills  30 kills at random moments, here and on a single-node Slurm, with equal results
# make wheel  the package, tried in an environment and a folder outside the checkout: minutes
# Each first makes .venv if it is missing or older than the versions pinned in constraints.txt; test, fast,
# lint, docs and kills add their tools to it. With TORCH=cpu it has torch without CUDA, from the index of
# such builds that PIP_EXTRA_INDEX_URL names; docs/quickstart.md says more, and the sizes.

PYTHON ?= python3.11
# the build of torch, as the version behind its +
TORCH ?=
# each of the many Pythons that a run or a test starts would compile the library again
unexport PYTHONDONTWRITEBYTECODE
# a name that `fedloom studies` prints
STUDY ?=
VENV := .venv/bin/python
# The digest of the inputs of .venv, which is stale when this changes or the folder moves. Each digest
# has a separate folder (.ci/make-venv).
STAMP := $(shell { cat constraints.txt; sed '/^\[tool/,$$d' pyproject.toml; echo $(CURDIR) $(TORCH); \
  } | sha256sum | cut -c1-12)

PINS := .venvs/$(STAMP)/constraints.txt
INSTALL := -m pip install --quiet --quiet --disable-pip-version-check --constraint $(PINS) --editable

.PHONY: run report smoke test fast lint docs bench peers real kills wheel venv for-test for-docs

run: venv
	@PYTHONPATH=workflow $(VENV) -P -m fedloom run $(STUDY) -- $(ARGS)

report: venv
	@PYTHONPATH=workflow $(VENV) -P -m fedloom report $(STUDY) -- $(ARGS)

smoke: venv
	@PYTHONPATH=workflow $(VENV) benchmarks/smoke.py $(STUDY) $(ARGS)

test: lint
	$(VENV) -m snakemake --lint
	$(VENV) -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(ARGS)

fast: lint
	$(VENV) -m pytest --numprocesses auto --dist loadfile -m "not slow" $(ARGS)

lint: for-test
	$(VENV) -m ruff check .
	$(VENV) -m ruff format --check .
	.venv/bin/snakefmt --check Snakefile workflow/rules workflow/new_study/Snakefile
	.venv/bin/codespell $$(git ls-files '*.py' '*.md' '*.yaml' '*.toml' '*.smk')
	PYTHONPATH=workflow .venv/bin/lint-imports --no-cache
	PYTHONPATH=workflow .venv/bin/basedpyright --pythonpath $(VENV)

docs: for-docs
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=workflow $(VENV) -m mkdocs build --strict

bench: peers
	@mkdir -p results/bench
	PYTHONPATH=workflow $(VENV) benchmarks/peers.py --figure results/bench/peers.png $(ARGS)
	PYTHONPATH=workflow $(VENV) benchmarks/roofline.py

# The tools for comparison in `make bench`, added to the packages of .venv. It also runs without them.
peers: venv
	@test -f build/peers/$(STAMP) -a build/peers/$(STAMP) -nt benchmarks/peers.txt || { \
	  echo "making build/peers from benchmarks/peers.txt (400 MB)" && rm -rf build/peers && \
	  $(VENV) -m venv build/peers && \
	  $(VENV) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > "$$(ls -d build/peers/lib/python*/site-packages)/fedloom.pth" && \
	  build/peers/bin/python -m pip install --quiet --quiet --disable-pip-version-check \
	    --requirement benchmarks/peers.txt && touch build/peers/$(STAMP) || { \
	    rm -rf build/peers; echo "not made: make bench goes on without other tools" >&2; }; }

# Killed, it goes on where it was.
real: venv
	PYTHONPATH=workflow $(VENV) benchmarks/real/get.py
	for study in told cifar10 pacs; do PYTHONPATH=workflow $(VENV) -m fedloom run \
	  benchmarks/real/$$study.yaml -- $(ARGS) || exit; done

kills: for-test
	PYTHONPATH=workflow $(VENV) tests/workflow/cluster/kills.py $(ARGS)

wheel:
	$(PYTHON) tests/support/installed.py build/wheel

# the extras `test` and `docs`, added to .venv
for-test for-docs: for-%: venv
	@test -f .venv/$@ || { echo "adding the tools of \`make $*\` to .venv" && \
	  $(VENV) $(INSTALL) '.[$*]' && touch .venv/$@; }

venv:
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" .ci/make-venv $(STAMP)
