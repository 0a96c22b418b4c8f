# Each target makes the virtual environment first if it is missing. Python 3.10 to 3.12; another one: make venv PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
# What runs here runs on the CPU, also where there is a GPU.
demo test coverage equivalence bench: export CUDA_VISIBLE_DEVICES :=

.PHONY: venv demo test coverage lint equivalence bench clean

venv: .venv/installed

.venv/installed: setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade "pip<26.2" wheel
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

demo: venv            ## the whole way on CPU, in minutes: runs/demo/report.html
	$(BIN)/python -m demo

test: venv            ## everything, a real Slurm included: as root, on Debian, after tests/cluster/install.sh
	$(BIN)/python -m pytest

coverage: venv        ## the same, and which lines it reached
	$(BIN)/python -m pytest --cov --cov-report=term

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy megatron_ext preprocess slurm checkpoints_tools demo benchmarks

equivalence: venv     ## every parallel layout against one rank
	$(BIN)/python -m benchmarks.equivalence --check

bench: venv equivalence
	$(BIN)/python -m benchmarks.step_overhead --check
	$(BIN)/python -m benchmarks.blend --check

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache *.egg-info
