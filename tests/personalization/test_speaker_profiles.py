"""Replies of speakers with a profile: participants, new users from a file and in Python, and exported models."""

import json

import pytest
import torch
from safetensors.torch import load_file
from small_dialogue import PROFILES, SPEAKERS, WORDS, conversations, with_profiles, write_dialogue, write_reply_model
from torch.func import functional_call
from typer.testing import CliRunner

from homespun.cli import app
from homespun.core.errors import InputError, UnknownNameError, VaultError
from homespun.data.source import DataSettings
from homespun.decoding.beam import beam_search
from homespun.experiments.reply_losses import conversation_losses
from homespun.models.reply_decoder import ReplyDecoder
from homespun.personalization.new_user import personalize, personalize_from_file
from homespun.personalization.profiles import ARTEFACT, profile_of
from homespun.personalization.replies import find_replier, reply
from homespun.personalization.reply_export import export_reply_model
from homespun.personalization.user import load_user_model
from homespun.runs.training import prepare, reopen

ADA, BO, CY = SPEAKERS
PROMPT = "is the sea blue?"
SMALL = {"rounds": 2, "workers": 0, "persona_dim": 3, "profile_dim": 2, "batch": 8, "new_columns": 1.0, "lr": 0.1}
NEW = "Eve Arden"
# gender: unknown, female, male; then age: unknown, 36, 50
ROWS_OF = {ADA: [1, 4], BO: [1, 5], CY: [2, 3]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    found = tmp_path_factory.mktemp("talk")
    write_dialogue(found / "talk.jsonl", with_profiles(conversations(12)))
    write_reply_model(found / "base", scale=2.0)
    return found


def trained(place, folder, method="fednlg", columns="gender,age", **settings):
    """The folder of a run after its rounds."""
    data = DataSettings(source=str(place / "talk.jsonl"), columns={"profile": columns} if columns else {})
    values = {"base_model": str(place / "base"), **SMALL, **settings}
    with prepare(method, data.load(), folder=folder, settings=values, data=data) as run:
        list(run.rounds())
    return folder


@pytest.fixture
def folder(place, tmp_path):
    return trained(place, tmp_path / "run")


def newcomer(path, profile, scenes=10):
    """A file of a new speaker."""
    rows = [{**row, "gender": None, "age": None} for row in conversations(scenes, speakers=(NEW,))]
    return write_dialogue(path, [{**row, **profile} if row["user"] == NEW else row for row in rows])


def log_prob(run, private, rows, words):
    """log p(words, end | PROMPT) with plain torch, with these rows of the profile's table."""
    question = WORDS.encode(PROMPT)
    batch = {
        "question": torch.tensor([question]),
        "question_length": torch.tensor([len(question)]),
        "reply": torch.tensor([words]),
        "length": torch.tensor([len(words) + 1]),
        "profile": torch.tensor([rows]),
    }
    parameters = run.built.parameters(run.state.broadcast(), private)
    with torch.no_grad():
        return -float(functional_call(run.built.model, parameters, (batch,)).double().sum())


def persona_of(run, private, rows):
    table = run.state.federated["profile.table"]
    return torch.cat((table[rows[0]] + table[rows[1]], private["persona.embedding"]))


def test_participants_reply_with_their_profile(folder):
    with reopen(folder) as run:
        stored = run.clients.stored_private(SPEAKERS)
        for user in SPEAKERS:
            speaker = find_replier(run).speaker(user)
            assert torch.equal(speaker.persona, persona_of(run, stored[user], ROWS_OF[user]))
            assert len(speaker.persona) == 5
            for one in reply(run, PROMPT, user=user, n=3, beam=16, max_words=2):
                expected = log_prob(run, stored[user], ROWS_OF[user], list(one.tokens))
                assert one.log_prob == pytest.approx(expected, abs=1e-4)
        assert profile_of(run, ADA) == {"gender": "female", "age": "36"} and profile_of(run, CY)["age"] is None
        new = find_replier(run).speaker(None)
        assert torch.equal(new.persona, persona_of(run, run.built.new_private("", seed=0), [0, 3]))
        assert profile_of(run, None) == profile_of(run, "nobody") == {}


def test_another_speaker_brings_their_own_profile(folder):
    with reopen(folder) as run:
        # All have the same behaviour part, so that only profiles differ.
        run.vault.stage({user: {"persona.embedding": torch.ones(3)} for user in SPEAKERS})
        own, another = (conversation_losses(run, persona) for persona in ("own", "another"))
        assert own["words"] == another["words"] and own["loss"] != another["loss"]


def test_a_new_user_from_a_file(folder, tmp_path):
    found = personalize_from_file(
        folder, DataSettings(source=str(newcomer(tmp_path / "eve.jsonl", {"gender": "male", "age": "50"}))), user=NEW
    )
    assert found["profile"] == {"gender": "male", "age": "50"} and found["uploaded_bytes"] == 0
    assert found["message"].endswith(" Profile: gender male, age 50.")
    with reopen(folder) as run:  # the file is not needed any more
        private = run.vault.private(NEW)
        assert sorted(private) == ["persona.embedding"]
        speaker = find_replier(run).speaker("eve")
        assert speaker.user == NEW and torch.equal(speaker.persona, persona_of(run, private, [2, 5]))
        assert load_user_model(run, NEW).reply(PROMPT, n=2, beam=8) == reply(run, PROMPT, user=NEW, n=2, beam=8)
        (best,) = reply(run, PROMPT, user=NEW, n=1, beam=16, max_words=2)
        assert best.log_prob == pytest.approx(log_prob(run, private, [2, 5], list(best.tokens)), abs=1e-4)
    with reopen(folder, read_only=False) as run:
        assert run.vault.forget(NEW) and profile_of(run, NEW) == {}


def test_values_that_no_participant_has_are_unknown(folder, tmp_path):
    path = newcomer(tmp_path / "eve.jsonl", {"gender": "other", "age": 36})
    found = personalize_from_file(folder, DataSettings(source=str(path)), user=NEW)
    assert found["profile"] == {"gender": None, "age": "36"} and "gender unknown, age 36" in found["message"]
    with reopen(folder) as run:
        assert torch.equal(find_replier(run).speaker(NEW).persona, persona_of(run, run.vault.private(NEW), [0, 4]))


def test_a_file_without_the_columns(folder, tmp_path):
    path = write_dialogue(tmp_path / "eve.jsonl", conversations(10, speakers=(NEW,)))
    with pytest.raises(UnknownNameError, match=r"no column 'gender'.*Columns: 'user', 'text', 'scene'"):
        personalize_from_file(folder, DataSettings(source=str(path)), user=NEW)
    result = CliRunner().invoke(app, ["personalize", str(folder), str(path), "--user", NEW, "--profile-column", ""])
    assert result.exit_code == 0 and "gender unknown, age unknown" in " ".join(result.output.split())
    other = write_dialogue(tmp_path / "other.jsonl", [{**row, "sex": "f"} for row in conversations(speakers=("Io",))])
    with pytest.raises(InputError, match=r"the run has no column 'sex'.*Its profile has 'gender', 'age'"):
        personalize_from_file(folder, DataSettings(source=str(other), columns={"profile": "sex"}), user="Io")


def test_a_new_user_in_python(folder):
    with reopen(folder) as run:
        texts, prompts = ["yes yes."] * 4, [PROMPT] * 4
        eve = personalize(run, "eve", texts, prompts=prompts, profile={"gender": "male"}, steps=3)
        assert eve.profile == {"gender": "male", "age": None}
        (best,) = eve.reply(PROMPT, n=1, beam=16, max_words=2)
        assert best.log_prob == pytest.approx(log_prob(run, eve.private, [2, 3], list(best.tokens)), abs=1e-4)
        unknown = personalize(run, "eve", texts, prompts=prompts, steps=3)
        assert not torch.equal(eve.private["persona.embedding"], unknown.private["persona.embedding"])
        with pytest.raises(InputError, match=r"the run has no column 'gendr'. Did you mean 'gender'"):
            personalize(run, "eve", texts, prompts=prompts, profile={"gendr": "male"})


def test_a_run_without_profiles_takes_none(place, tmp_path):
    with reopen(trained(place, tmp_path / "plain", columns="")) as run:
        with pytest.raises(InputError, match=r"no column 'gender'. It has no profiles"):
            personalize(run, "eve", ["yes."], prompts=[PROMPT], profile={"gender": "male"})
        assert len(find_replier(run).speaker(ADA).persona) == 3


def test_a_profile_that_cannot_be_read_is_not_used(folder):
    with reopen(folder, read_only=False) as run:
        for damaged in (b"{", b"[1]", b'{"gender": 3}'):
            run.vault.keep_artefact(ARTEFACT, damaged, user=NEW)
            with pytest.raises(VaultError, match="a profile that cannot be read"):
                profile_of(run, NEW)


def test_an_exported_model_has_the_joined_persona(folder, tmp_path):
    with reopen(folder) as run:
        export_reply_model(run, tmp_path / "ada", user=ADA)
        private, expected = run.vault.private(ADA), reply(run, PROMPT, user=ADA, n=3, beam=8, max_words=3)
        parameters = load_file(tmp_path / "ada" / "model.safetensors")
        assert not [name for name in parameters if name.startswith("profile")]
        assert torch.equal(parameters["persona.embedding"], persona_of(run, private, ROWS_OF[ADA]))
        layers = json.loads((tmp_path / "ada" / "config.json").read_text())["sizes"]["layers"]
    assert b"female" not in b"".join(one.read_bytes() for one in (tmp_path / "ada").iterdir())
    decoder = ReplyDecoder(parameters, layers=layers)
    state = decoder.start([WORDS.encode(PROMPT)], parameters["persona.embedding"][None])
    (found,) = beam_search(decoder, state, beam=8, n_best=3, max_length=3)
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in expected], abs=1e-5)


def test_a_table_of_personas_holds_behaviour_parts(place, tmp_path):
    with reopen(trained(place, tmp_path / "central", method="central_dialogue")) as run:
        behaviour, profile = run.state.keyed["persona.table"], run.state.federated["profile.table"]
        assert behaviour.shape == (3, 3)
        for row, user in enumerate(SPEAKERS):
            part = profile[ROWS_OF[user]].sum(dim=0)
            assert torch.equal(find_replier(run).speaker(user).persona, torch.cat((part, behaviour[row])))


@pytest.mark.parametrize("method", ["fedrep", "alone"])
def test_methods_over_the_network_of_fednlg(place, tmp_path, method):
    """Of `alone`, the table of values is private too."""
    own = {"base_model": str(place / "base"), "persona_dim": 3, "profile_dim": 2, "batch": 8}
    data = DataSettings(source=str(place / "talk.jsonl"), columns={"profile": "gender,age"})
    values = {"base_method": "fednlg", "base_settings": own, "rounds": 1, "workers": 0}
    with prepare(method, data.load(), folder=tmp_path / method, settings=values, data=data) as run:
        list(run.rounds())
        private = run.clients.stored_private([CY])[CY]
        assert ("profile.table" in private) is (method == "alone")
        (best,) = reply(run, PROMPT, user=CY, n=1, beam=16, max_words=2)
        assert best.log_prob == pytest.approx(log_prob(run, private, ROWS_OF[CY], list(best.tokens)), abs=1e-4)


def test_the_commands(place, tmp_path):
    folder = tmp_path / "run"
    options = ["--set", "persona_dim=3", "--set", "profile_dim=2", "--set", "workers=0", "--set", "evaluate_replies=0"]
    arguments = ["train", "fednlg", "--data", str(place / "talk.jsonl"), "--base", str(place / "base"), "--rounds", "1"]
    result = CliRunner().invoke(app, [*arguments, "--folder", str(folder), "--profile-column", "gender,age", *options])
    assert result.exit_code == 0, result.output
    path = newcomer(tmp_path / "eve.jsonl", PROFILES[ADA])
    result = CliRunner().invoke(app, ["personalize", str(folder), str(path), "--user", NEW, "--json"])
    assert json.loads(result.stdout)["profile"] == {"gender": "female", "age": "36"}
    result = CliRunner().invoke(app, ["reply", str(folder), "--as", f"{NEW},{CY}", "--beam", "4", "--json", PROMPT])
    assert [one["user"] for one in json.loads(result.stdout)["replies"]] == [NEW, CY]
