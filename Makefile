# A fresh clone needs only Python >= 3.11, make and a network.
PYTHON ?= python3
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN := .venv/bin

.PHONY: demo test test-all check format docs site wheel bench clean

demo: dxn/conf/signatures.json ## train on the built-in data set and print the table of figures
	$(RUN)/dxn train

# In the order of tests/conftest.py, long files first.
# Processes that tests start need the compiled modules, which some environments do not keep.
test: dxn/conf/signatures.json ## run the test suite, one process per core
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(RUN)/pytest -n auto --dist loadfile --no-loadscope-reorder

test-all: dxn/conf/signatures.json ## run all tests, also the slow ones: comparisons, compilation, exports, processes, faults, long trainings
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(RUN)/pytest -n auto --dist loadfile --no-loadscope-reorder -m ""

check: .venv/ready ## check lint, format, the directions of imports, and types
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/lint-imports
	$(RUN)/pyright

docs: .venv/ready ## write the pages of all options and of Python to docs/reference
	$(RUN)/python docs/reference/options.py
	$(RUN)/python docs/reference/python.py

site: .venv/ready ## write the documentation as a site to the folder site
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build

# The build has no torch, so it cannot write the signatures itself.
wheel: dxn/conf/signatures.json ## build the package to the folder dist
	$(UV) build --wheel

# The group dev includes the group bench. DATA=DIR adds the rows of whole runs, see benchmarks/speed/bench.py.
bench: .venv/ready ## compare the speed with that of other libraries; writes BENCHMARKS.md
	$(RUN)/python benchmarks/speed/bench.py $(if $(DATA),--data $(DATA))

format: .venv/ready ## fix lint and format automatically
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

# With this file, a mistyped option is answered without importing torch. git ignores it.
dxn/conf/signatures.json: .venv/ready $(shell find dxn -name '*.py')
	$(RUN)/python -m dxn.config.signatures

.venv/ready: pyproject.toml uv.lock
	@test -x "$(UV)" || { $(PYTHON) -m venv .uv && .uv/bin/pip install --quiet uv; }
	$(UV) sync --locked --compile-bytecode --python $(PYTHON)
	@touch .venv/ready

clean: ## remove environments and outputs
	rm -rf .venv .uv outputs dist build site
