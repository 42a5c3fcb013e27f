"""The promise of OOV Expansion: no word of a user's lexicon is in a message, log, traceback, record or report, nor in
what another user gets.

Every user has canary words. Commands run in a real process, with an engine behind a byte pipe, worker processes and all
logging; then everything that they sent, printed and wrote is searched for canaries in many forms. A method that leaks
on purpose is caught by the same search.
"""

import base64
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from canaries import canaries, file_traces, forms, traces, vault_traces

from homespun.core.messages import state_to_bytes
from homespun.data import load_federation
from homespun.methods.oov_expansion import SMALL
from homespun.runs.training import prepare
from homespun.runs.vault import VAULT_FILE, Vault

pytestmark = pytest.mark.system

USERS = [f"user-{number}" for number in range(8)]
NEW = "eve"  # personalizes from a file of her own
WORDS = canaries([*USERS, NEW])
ALL = [word for own in WORDS.values() for word in own]
VALUES = {
    **SMALL, "rounds": 2, "cohort": 3, "workers": 2, "withheld": 0.25, "evaluate_every": 1, "personalize_epochs": 1,
    "personalize_lrs": [0.1, 0.3],
}  # fmt: skip
ADA, BO = "user-0", "user-1"

# Runs commands one after the other; what each prints is a file of its own. All messages of the engine are in `wire`.
SCRIPT = """
import json, logging, os, sys
from functools import cached_property
from pathlib import Path

evidence, commands = Path(sys.argv[1]), json.loads(sys.argv[2])
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)

from homespun.cli import main
from homespun.engines.remote import RemoteEngine, answer
from homespun.runs.run import Run

local = vars(Run)["engine"].func

def behind_a_pipe(run):
    engine = local(run)
    def ask(message):
        reply = answer(engine, message)
        with (evidence / "wire").open("ab") as wire:
            wire.write(message + reply)
        return reply
    return RemoteEngine(ask)

Run.engine = cached_property(behind_a_pipe)
Run.engine.__set_name__(Run, "engine")
codes = {}
for name, words in commands.items():
    printed = os.open(evidence / name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(printed, 1), os.dup2(printed, 2)
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        codes[name] = end.code
    sys.stdout.flush(), sys.stderr.flush()
(evidence / "codes").write_text(json.dumps(codes))
"""


def run_commands(place, commands):
    """Run these commands in one process, and return their exit codes. They print to files in `place/evidence`."""
    (place / "evidence").mkdir(exist_ok=True)
    (place / "tmp").mkdir(exist_ok=True)
    words = json.dumps({name: list(map(str, command)) for name, command in commands.items()})
    folders = {"XDG_DATA_HOME": str(place / "own"), "TMPDIR": str(place / "tmp"), "COLUMNS": "200"}
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "always", "-c", SCRIPT, str(place / "evidence"), words],
        cwd=place, env={**os.environ, **folders}, capture_output=True, timeout=280,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads((place / "evidence" / "codes").read_text())


def write_corpus(path, users, *, texts=12):
    """Each text has both words of its user, in different cases."""
    rows = [
        {
            "user": user,
            "text": f"We need {one} and {other.title()} in {one.upper()} now, more {('time', 'peace')[n % 2]}.",
        }
        for user in users
        for one, other in [WORDS[user]]
        for n in range(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(method, folder, **changed):
    settings = [f"--set={name}={json.dumps(value)}" for name, value in {**VALUES, **changed}.items()]
    return ["train", method, "--data", "corpus/chat.jsonl", "--folder", folder, *settings]


EXPERIMENT = "\n".join(
    [
        'data.source = "corpus/chat.jsonl"',
        *(f"settings.{name} = {json.dumps(value)}" for name, value in {**VALUES, "rounds": 1}.items()),
        'configurations.ours.method = "oov_expansion"',
    ]
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run, and everything that its commands left behind."""
    made = tmp_path_factory.mktemp("audit")
    for folder in ("corpus", "asked", "experiments"):
        (made / folder).mkdir()
    write_corpus(made / "corpus" / "chat.jsonl", USERS)
    write_corpus(made / "corpus" / "mine.jsonl", [NEW])
    (made / "experiments" / "audit.toml").write_text(EXPERIMENT)
    codes = run_commands(made, {
        "train": train("oov_expansion", "run"),
        "compare": ["compare", "experiments/audit.toml"],
        "prior": train("oov_expansion", "with prior", adapter_prior="federated", prior_adapter=[4]),
        "evaluate": ["evaluate", "run"],
        "personalize": ["personalize", "run", "corpus/mine.jsonl"],
        "report": ["report", "run"],
        "vault": ["vault", "list", "run"],
        "data": ["data", "check", "corpus/chat.jsonl"],
        "asked-suggest": ["suggest", "run", "we need", "--user", ADA, "-k", 204, "--json"],
        "asked-words": ["words", "run", "--user", ADA],
        "asked-export": ["export", "run", "--user", ADA, "--output", "asked/export", "--int8"],
        "asked-list": ["words", "run", "--user", ADA, "--export", "asked/words.txt"],
        "asked-vault": ["vault", "export", "run", ADA, "--output", "asked/mine.safetensors"],
        "asked-typo": ["words", "run", "--user", ADA, "--forget", WORDS[ADA][0][:-1]],
        "asked-prefix": ["suggest", "run", "we need", "--user", ADA, "--prefix", WORDS[BO][0][:6]],
    })  # fmt: skip
    assert codes.pop("asked-typo") == 2 and set(codes.values()) == {0}, codes
    return made


def unasked(place):
    """Files that may have own words: the corpus, what users asked for, and the vaults."""
    asked = {path for folder in ("corpus", "asked") for path in (place / folder).rglob("*")}
    return {*asked, *(place / "evidence").glob("asked-*"), *place.rglob(f"{VAULT_FILE}*")}


def found_in(place):
    return file_traces(place, ALL, without=unasked(place))


def test_no_own_word_leaves_its_home(place):
    wire = (place / "evidence" / "wire").read_bytes()
    assert all(f'"{asked}"'.encode() in wire for asked in ("train", "personalize", "confirm", "evaluate", "newcomers"))
    searched = {path.name for path in set(place.rglob("*")) - unasked(place)}
    written = {"settings.json", "results.json", "report.html", "report.md", "vault.lock"}
    assert searched >= {
        *written,
        "wire",
        "train",
        "compare",
        "prior",
        "evaluate",
        "personalize",
        "report",
        "vault",
        "data",
    }
    assert found_in(place) == []


def test_the_model_does_not_depend_on_how_own_words_are_spelled(tmp_path):
    """With other words in their place, the server ends with the same bits, also under differential privacy."""
    swapped = dict(zip(ALL, reversed(ALL), strict=True))
    write_corpus(tmp_path / "chat.jsonl", USERS)
    text = (tmp_path / "chat.jsonl").read_text()
    for word, other in swapped.items():
        for change in (str, str.title, str.upper):
            text = text.replace(json.dumps(change(word))[1:-1], f"<{change(other)}>")
    (tmp_path / "other.jsonl").write_text(text.replace("<", "").replace(">", ""))
    privacy = {"noise_multiplier": 1.0, "clip": 1.0, "insecure": True, "delta": 0.01, "amplification": False}
    for changed in ({}, {"privacy": privacy}):
        states = []
        for name in ("chat", "other"):
            values = {**VALUES, "workers": 0, **changed}
            with prepare(
                "oov_expansion", load_federation(tmp_path / f"{name}.jsonl"), folder=None, settings=values
            ) as run:
                list(run.rounds())
                states.append(state_to_bytes(run.state))
        assert states[0] == states[1]


def test_the_vault_has_own_words_in_rows_of_their_owner_only(place):
    for path in place.rglob(VAULT_FILE):
        assert list(vault_traces(path, WORDS)) == []
    with Vault.open(place / "run", read_only=True) as vault:
        known = vault.users()
    content = (place / "run" / VAULT_FILE).read_bytes()
    assert len(known) == 7 and NEW in known
    assert all(bool(traces(content, [word])) == (user in known) for user in WORDS for word in WORDS[user])


def test_users_get_their_own_words_only(place):
    """Where they ask for their words, the search finds them."""
    others = [word for user, own in WORDS.items() if user != ADA for word in own]
    asked = [*(place / "evidence").glob("asked-*"), *(one for one in (place / "asked").rglob("*") if one.is_file())]
    with_words = {path.name for path in asked if traces(path.read_bytes(), WORDS[ADA])}
    assert with_words == {"asked-suggest", "asked-words", "asked-typo", "words.txt", "mine.safetensors"}
    assert [path.name for path in asked if traces(path.read_bytes(), others)] == []


def test_a_record_of_the_documentation_has_none(place, monkeypatch):
    monkeypatch.chdir(place)
    file = Path(__file__).parents[2] / "docs" / "records.py"
    spec = importlib.util.spec_from_file_location("docs_records", file)
    records = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(records)
    assert records.keep("audit") == 1
    record = (place / "docs" / "results" / "audit.json").read_bytes()
    assert b"EMR3" in record and traces(record, ALL) == []


def test_forgotten_users_leave_nothing(place, tmp_path):
    """In no byte of the vault's files, unused space included."""
    folder = shutil.copytree(place / "run", tmp_path / "run")
    with Vault.open(folder) as vault:
        for user in vault.users():
            vault.forget(user)
        assert file_traces(folder, ALL) == []
    assert file_traces(folder, ALL) == []


# Failures

FAILING = """
from dataclasses import replace
from homespun.methods import oov_expansion
from homespun.methods.oov_expansion import Settings

def fail(data, output):
    raise ValueError(data["spelling"].shape, output.shape)

def method(settings, task):
    made = oov_expansion.method(settings, task)
    return replace(made, personalize=replace(made.personalize, score=fail))
"""


def test_a_failing_search_says_nothing(place, tmp_path):
    """In this process and in a worker, whose traceback crosses a pipe."""
    for name in ("corpus", "run"):
        shutil.copytree(place / name, tmp_path / name)
    (tmp_path / "failing.py").write_text(FAILING)
    commands = {
        "worker": train("failing.py", "in a worker"),
        "here": train("failing.py", "here", workers=0),
    }
    codes = run_commands(tmp_path, commands)
    assert set(codes.values()) == {1}, codes
    printed = {name: (tmp_path / "evidence" / name).read_text() for name in commands}
    assert all("Traceback" in one and "torch.Size([" in one for one in printed.values())
    assert "a worker failed" in printed["worker"]
    assert found_in(tmp_path) == []


# Each stays a tree of tensors with valid checksums
MALFORMED = {
    "narrow": lambda row: {"own.lexicon": row["own.lexicon"][:, :9].contiguous()},
    "flat": lambda row: {"own.lexicon": row["own.lexicon"].flatten()},
    "floats": lambda row: {"own.lexicon": row["own.lexicon"].float()},
    "torn": lambda row: {"own.lexicon": row["own.lexicon"].masked_fill(row["own.lexicon"] == 0xC3, 0xFF)},
    "uncounted": lambda row: {"own.counts": row["own.counts"][:1]},
    "unadapted": lambda row: {"own.adapter": row["own.adapter"][:5]},
    "deep": lambda row: {"own.hidden": torch.tensor([4, 4])},
    "copy": lambda row: {"output.bias": row["output.bias"][:9]},
    "named": lambda row: {f"output.{WORDS[ADA][0]}": torch.ones(2)},
}


def test_malformed_rows_say_nothing(place, tmp_path):
    """No command uses them, and no error shows what is in them."""
    shutil.copytree(place / "corpus", tmp_path / "corpus")
    (tmp_path / "asked").mkdir()
    commands = {}
    for name, change in MALFORMED.items():
        folder = shutil.copytree(place / "run", tmp_path / name)
        with Vault.open(folder) as vault:
            row = vault.private(ADA)
            vault.stage({ADA: {**row, **change(row)}})
            vault.commit(round=vault.round)
        commands |= {
            f"{name} suggest": ["suggest", name, "we", "--user", ADA],
            f"{name} words": ["words", name, "--user", ADA],
            f"{name} forget": ["words", name, "--user", ADA, "--forget", WORDS[BO][0]],
            f"{name} export": ["export", name, "--user", ADA, "--output", f"asked/{name}"],
        }
    commands["evaluate"] = ["evaluate", "torn"]
    codes = run_commands(tmp_path, commands)
    expected = (
        r"(Vault|Worker)Error: .*vault\.sqlite: the entry of user 'user-0' does not fit this run\. It is not used"
    )
    for name in commands:
        printed = (tmp_path / "evidence" / name).read_text()
        assert codes[name] == 1 and re.search(expected, printed) and "Traceback" not in printed, (name, printed)
    assert found_in(tmp_path) == []


# A method that leaks on purpose

# It logs words when it scores, prints them when it personalizes, sends them with scores and in a FEDERATED parameter,
# and writes them into the results.
LEAKING = """
import logging
from dataclasses import replace

from homespun.evaluation.next_words import NextWordScoring
from homespun.methods import oov_expansion
from homespun.methods.oov_expansion import Settings
from homespun.models.next_word import read_spelling


def spellings(data):
    rows = data["spelling"].flatten(0, 1)
    return rows[rows[:, 0] != 0]


class Scoring(NextWordScoring):
    def score(self, data, output):
        for row in spellings(data)[:2]:
            logging.getLogger("leaking").debug("scored %s", read_spelling(row).decode())
        return {**super().score(data, output), "typed": spellings(data)[:2].double().numpy()}

    def summarize(self, counts):
        found = super().summarize(counts)
        typed = "".join(map(chr, counts[0]["typed"][0].astype(int)))
        object.__setattr__(found, "to_dict", lambda: {**type(found).to_dict(found), "first": typed})
        return found


def choose(choices):
    search = choices.starts
    def starts(home, fit, choices):
        print("learning", bytes(spellings(fit)[1].tolist()), flush=True)
        return search(home, fit, choices)
    return replace(choices, starts=starts)


TYPED = []


def method(settings, task):
    made = oov_expansion.method(settings, task)

    def encode(examples):
        data = made.model.encode(examples)
        TYPED.extend(spellings(data))
        return data

    def server(state, update):
        moved = made.server(state, update)
        bias = moved.federated["output.bias"].clone()
        bias[:32] = TYPED[0].float()
        return replace(moved, federated={**moved.federated, "output.bias": bias})

    model = replace(made.model, encode=encode)
    return replace(made, model=model, server=server, scoring=Scoring(), personalize=choose(made.personalize))
"""


def test_a_method_that_leaks_is_caught(place, tmp_path):
    shutil.copytree(place / "corpus", tmp_path / "corpus")
    (tmp_path / "leaking.py").write_text(LEAKING)
    codes = run_commands(tmp_path, {"train": train("leaking.py", "run")})
    assert codes == {"train": 0}
    found = {(one.split(": ")[0], one.split(": ")[2]) for one in found_in(tmp_path)}
    expected = {("wire", "numbers <f8"), ("wire", "numbers <f4"), ("train", "text"), ("train", "bytes")}
    assert {(f"evidence/{name}", form) for name, form in expected} | {("run/results.json", "text")} <= found
    assert {one.split(": ")[0] for one in vault_traces(tmp_path / "run" / VAULT_FILE, WORDS)} == {"run", "history"}


def test_a_vault_with_words_of_another_user_is_caught(place, tmp_path):
    shutil.copy(place / "run" / VAULT_FILE, tmp_path)
    with Vault.open(tmp_path) as vault:
        rows = vault.private_many([ADA, BO])
        vault.stage({ADA: rows[BO]})
        vault.commit(round=vault.round, records=[{"kind": "round", "typed": WORDS[NEW][1]}])
        vault.keep_artefact("most typed", WORDS[NEW][0].encode())
    found = {one.split(": ")[0] for one in vault_traces(tmp_path / VAULT_FILE, WORDS)}
    assert found == {"private", "history", "run"}


@pytest.mark.parametrize("word", [WORDS[ADA][0], WORDS[ADA][1]])
def test_every_form_of_a_word_is_found(word):
    assert traces("".join(f"{word} is no word of hers" for word in ("we", "need")).encode(), [word]) == []
    for form, name in forms(word).items():
        assert f"{word}: {name}" in traces(b"so " + form + b" now", [word])
    spelled = torch.tensor(list(word.encode()))
    said = [
        str(spelled),
        repr(spelled.tolist()),
        spelled.double().numpy().tobytes(),
        base64.b64encode(b"a" + word.encode()),
    ]
    assert all(traces(one if isinstance(one, bytes) else one.encode(), [word]) for one in said)
