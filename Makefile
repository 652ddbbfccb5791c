# The commands of this project: `make quickstart`, `make test`, `make docs`. Each makes its own virtual environment.
PYTHON ?= python3
VENV ?= .venv
# The tests of the PyTorch backend; `make test TORCH=` leaves them and this large download out.
TORCH ?= torch==2.13.0
# Without CUDA where there is such a build.
TENSORFLOW ?= $(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),tensorflow-cpu,tensorflow)
# Tests run in two processes; each takes up to 3 GB, of the slow ones up to 8 GB.
WORKERS ?= -n 2 --dist worksteal
# On the other backends few tests run: to start two processes for each takes longer. Both backends run at once.
ALONE := OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1
SLOWEST := --durations 20
# Pinned: a newer formatter may format otherwise, and a newer checker find more.
RUFF ?= ruff==0.17.6
PYRIGHT ?= basedpyright==1.40.2
# What builds a release and checks it.
RELEASE ?= build twine check-wheel-contents pyroma
# Where `make docs` puts the site.
SITE ?= build/docs

BIN := $(VENV)/bin
CACHE := .pytest_cache/downloads
WEB := $(CACHE)/web.stamp
MAIN_BACKEND := KERAS_BACKEND=$(if $(strip $(TORCH)),torch,tensorflow)
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Compiled files are kept: container images often forbid it, and each of some hundred processes would compile all again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart test test-smoke test-slow test-backends docs benchmark lint format dist sbom clean

quickstart: $(VENV)/examples.stamp
	$(BIN)/python examples/quickstart.py

# Every test runs on the quickest backend, PyTorch; the first case of each test of the numeric core on the others, and on
# TensorFlow what only it needs. JAX compiles without optimizing here: that takes longer than what is tested.
test: $(VENV)/test.stamp
ifneq ($(strip $(TORCH)),)
	KERAS_BACKEND=torch $(BIN)/python -m pytest $(WORKERS) --budget -m "not slow"
	mkdir -p .pytest_cache
	$(ALONE) KERAS_BACKEND=tensorflow $(BIN)/python -m pytest --budget -m "first_case or (only_on and not slow)" & \
	$(ALONE) KERAS_BACKEND=jax JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m pytest -q --budget -m first_case \
		> .pytest_cache/jax.log 2>&1; jax=$$?; wait $$!; tensorflow=$$?; cat .pytest_cache/jax.log; \
	exit $$((jax + tensorflow))
else
	KERAS_BACKEND=tensorflow $(BIN)/python -m pytest $(WORKERS) --budget -m "not slow"
	KERAS_BACKEND=jax JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m pytest $(WORKERS) --budget -m first_case
endif

# Three minutes of slow tests: what breaks most, and what a user meets first.
test-smoke: $(VENV)/test.stamp
	$(MAIN_BACKEND) $(BIN)/python -m pytest $(WORKERS) -m smoke

# The slow tests, half an hour. `pytest -m exhaustive` is left to be run by hand: every kind of model in every exported
# format, a quarter of an hour a backend, and a distillation on real pictures.
test-slow: $(VENV)/test.stamp $(WEB)
	$(MAIN_BACKEND) $(BIN)/python -m pytest $(WORKERS) $(SLOWEST) -m "slow and not exhaustive"

# On TensorFlow every test that depends on the backend, every case of the numeric core on JAX, and on OpenVINO, which
# trains nothing, the numbers of the original of each family and each pair of towers: an hour.
OPENVINO_TESTS := test_golden.py checkpoints/test_families.py text/test_towers.py text/test_encoded.py text/test_reading.py
test-backends: $(VENV)/test.stamp $(WEB)
	KERAS_BACKEND=tensorflow $(BIN)/python -m pytest $(WORKERS) $(SLOWEST) -m "not (first_case or any_backend or exhaustive)"
	KERAS_BACKEND=jax $(BIN)/python -m pytest $(WORKERS) $(SLOWEST) -m "core and not first_case"
	KERAS_BACKEND=openvino $(BIN)/python -m pytest $(WORKERS) $(SLOWEST) -m "not slow" $(addprefix tests/,$(OPENVINO_TESTS))

# The site, strictly and without a network: open build/docs/index.html.
docs: $(VENV)/docs.stamp
	$(MAIN_BACKEND) $(BIN)/python -m sphinx -b html -W --keep-going -n -q -E -d build/doctrees docs $(SITE)

# Ours beside its peers, an hour and a half and 10 GB; see benchmarks/README.md. `make benchmark ARGS=--quick` takes minutes.
benchmark: $(VENV)/benchmark.stamp
	$(BIN)/python -m benchmarks $(ARGS) --output benchmarks.json
	$(BIN)/python -m benchmarks figure benchmarks.json benchmarks.png

lint: $(VENV)/lint.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_types.py
	$(BIN)/python tools/check_english.py

format: $(VENV)/lint.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The archives of a release, in dist: the wheel is built from the source archive alone.
dist: $(VENV)/dist.stamp
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/pyroma --min 8 dist/*.tar.gz  # of 10: there is no address of an author

# What an installation of the wheel brings, in CycloneDX's format; the backend is the user's choice.
sbom: dist
	rm -rf build/sbom
	$(PYTHON) -m venv build/sbom/installed
	build/sbom/installed/bin/python -m pip install --quiet dist/*.whl
	$(PYTHON) -m venv build/sbom/tool
	build/sbom/tool/bin/python -m pip install --quiet cyclonedx-bom
	build/sbom/tool/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		-o build/sbom/sbom.cdx.json build/sbom/installed/bin/python

clean:
	rm -rf $(VENV) .venv-benchmarks quickstart build dist *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 14) or sys.exit("vit_keras needs Python 3.11 to 3.14; this is %d.%d. Choose one: make PYTHON=python3.12 ..." % v)'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }  # half of one would count as made

$(VENV)/examples.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable . scikit-image scikit-learn $(TENSORFLOW)
	touch $@

$(VENV)/test.stamp: pyproject.toml | $(VENV)/bin/python
ifneq ($(strip $(TORCH)),)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
endif
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $@

# What the pages with a model in them are tested with, 33 MB; without a network those tests are left out.
$(WEB): vit_keras/export/web.py | $(VENV)/test.stamp
	-VIT_KERAS_HOME=$(CACHE) $(BIN)/python -c "from vit_keras.export import web; web.onnxruntime_web()" && touch $@

$(VENV)/docs.stamp: pyproject.toml | $(VENV)/bin/python
ifneq ($(strip $(TORCH)),)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
else
	$(BIN)/python -m pip install --quiet --editable ".[docs]" $(TENSORFLOW)
endif
	touch $@

$(VENV)/benchmark.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet matplotlib
	touch $@

$(VENV)/dist.stamp: Makefile | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(RELEASE)
	touch $@

$(VENV)/lint.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet "$(RUFF)" "$(PYRIGHT)" --editable .
	touch $@
