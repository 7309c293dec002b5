# Everything a fresh clone needs is Python >= 3.11, make and a network.
PYTHON ?= python3
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN := .venv/bin

.PHONY: demo test check format docs clean

demo: .venv/ready ## train on the embedded data until it prints its table
	$(RUN)/dxn train

test: .venv/ready ## pass the tests
	$(RUN)/pytest

check: .venv/ready ## lint, format and types
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/pyright

docs: .venv/ready ## write docs/config.md anew
	$(RUN)/python docs/reference.py

format: .venv/ready
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

.venv/ready: pyproject.toml uv.lock
	@test -x "$(UV)" || { $(PYTHON) -m venv .uv && .uv/bin/pip install --quiet uv; }
	$(UV) sync --locked --compile-bytecode --python $(PYTHON)
	@touch .venv/ready

clean:
	rm -rf .venv .uv outputs dist build
