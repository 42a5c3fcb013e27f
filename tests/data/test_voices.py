"""Twenty voices: distinguishable speech, files that are complete or absent, and users who like one voice."""

import fcntl
import json
import os
import shutil
import signal
import sys
import threading

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid
from typer.testing import CliRunner

from homespun.cli import app
from homespun.core.errors import DataError, InputError, SettingsError
from homespun.data import load_federation, speech
from homespun.data.preferences import TEST
from homespun.data.spectrogram_set import (
    SpectrogramRequest,
    make_set,
    plan_set,
    read_manifest,
    read_spectrograms,
    spectrogram,
    verify_set,
)

SMALL = SpectrogramRequest(utterances=80)
FEW = {"train": 14, "validation": 4, "test": 6}  # examples of a user


def made(folder, request=SMALL):
    for _ in make_set(folder, plan_set(request)):
        pass
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Twelve utterances of each voice, nine for training."""
    return made(tmp_path_factory.mktemp("speech") / "voices", SpectrogramRequest(utterances=240))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return made(tmp_path_factory.mktemp("speech") / "voices")


@pytest.fixture
def copied(small, tmp_path):
    return shutil.copytree(small, tmp_path / "copy")


def voices(folder, **settings):
    return load_federation("voices", settings={"folder": str(folder), "users": 40, **FEW, **settings})


def test_a_voice_is_the_weighted_mean_of_its_base_voices():
    voice = speech.mix_voices({"bass": 0.75, "child": 0.25})
    assert voice.pitch_low_hz == 0.75 * 62 + 0.25 * 240 and voice.words_per_minute == 0.75 * 150 + 0.25 * 140
    mixtures = speech.voice_mixtures()
    assert len(speech.BASES) == 8 and len({speech.mix_voices(each) for each in mixtures}) == 20
    assert mixtures[0] == {"bass": 0.6, "baritone": 0.4} and mixtures[1] == {"bass": 0.4, "baritone": 0.6}
    assert {name for each in mixtures for name in each} == set(speech.BASES)


def test_an_utterance_does_not_depend_on_what_was_said_before():
    some = [speech.mix_voices(each) for each in speech.voice_mixtures()]
    with speech.synthesizer(some) as speaker:
        first = speaker.say("The state of the union is strong.", 3)
        for voice in range(20):
            speaker.say("Nobody should hear this.", voice, pitch=40 + voice, pace=0.8 + voice / 50)
        assert np.array_equal(speaker.say("The state of the union is strong.", 3), first)
        assert len(speaker.say("The state of the union is strong.", 3, pace=1.5)) < 0.8 * len(first)
    assert first.dtype == np.int16 and 1.0 < len(first) / speech.SAMPLE_RATE < 4.0


def test_spectrograms_show_a_tone_where_it_is():
    seconds = np.arange(speech.SAMPLE_RATE) / speech.SAMPLE_RATE
    tone = spectrogram((10_000 * np.sin(2 * np.pi * 1000 * seconds)).astype(np.int16))
    assert tone.shape == (200, 375) and tone.dtype == np.uint8 and tone.max() == 255
    spoken = 1 + (len(seconds) - 512) // 256
    assert set(tone[:, :spoken].argmax(0)) == {round(1000 / (speech.SAMPLE_RATE / 512)) - 1}  # band 0 is 43 Hz
    assert not tone[:, spoken:].any()
    assert spectrogram(np.ones(10 * speech.SAMPLE_RATE, np.int16)).shape == (200, 375)
    assert not spectrogram(np.zeros(0, np.int16)).any()


def test_voices_can_be_distinguished_by_new_sentences_and_twins_are_the_hardest(whole):
    manifest = read_manifest(whole)
    images, kinds, ends = read_spectrograms(whole, manifest), np.array(manifest.voice), manifest.training
    averaged = np.stack([image[:, image.any(0)].mean(1) for image in images])
    # Directions that matter, and plain distance, which confuses more of them
    linear = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(averaged[:ends], kinds[:ends])
    nearest = NearestCentroid().fit(averaged[:ends], kinds[:ends])
    heard = kinds[ends:]
    assert len(heard) == 60
    assert np.mean(linear.predict(averaged[ends:]) == heard) > 0.8  # by chance 0.05
    said = nearest.predict(averaged[ends:])
    wrong = said != heard
    assert 0.1 < wrong.mean() < 0.6
    assert np.mean(said[wrong] // 2 == heard[wrong] // 2) > 0.3  # the same two base voices; by chance 1/19


def test_every_sentence_is_said_once_and_every_voice_in_both_parts(whole):
    manifest = read_manifest(whole)
    assert len(set(manifest.sentence)) == 240 and manifest.training == 180
    assert np.bincount(manifest.voice[:180]).tolist() == [9] * 20
    assert np.bincount(manifest.voice[180:]).tolist() == [3] * 20
    images = read_spectrograms(whole, manifest)
    assert isinstance(images, np.memmap) and images.shape == (240, 200, 375)
    assert np.all(images.max((1, 2)) == 255)


def test_a_larger_set_has_the_smaller_ones_utterances(whole, small):
    large, few = (
        dict(zip(found.sentence, found.voice, strict=True)) for found in (read_manifest(whole), read_manifest(small))
    )
    assert few.items() <= large.items()


def test_a_stopped_set_resumes_and_is_bit_identical(small, tmp_path):
    folder = tmp_path / "stopped"
    for attempt in (1, 2):
        steps = make_set(folder, plan_set(SMALL))
        begun = next(steps)
        assert begun == (0, 20)[attempt - 1]
        for done in steps:
            if done == 20 * attempt:
                break
        steps.close()
        with open(folder / "spectrograms.npy.part", "ab") as file:
            file.write(b"half an utterance")
        with pytest.raises(DataError, match=r"the set of voices is incomplete\. Finish it with `homespun data voices"):
            voices(folder)
    made(folder)
    assert sorted(os.listdir(folder)) == ["spectrograms.npy", "voices.json"]
    for name in os.listdir(folder):
        assert (folder / name).read_bytes() == (small / name).read_bytes()


def test_the_draft_of_another_set_is_not_resumed(tmp_path):
    for request in (SpectrogramRequest(utterances=80, seed=1), SMALL):
        steps = make_set(tmp_path, plan_set(request))
        assert [next(steps), next(steps)] == [0, 1]
        steps.close()
    assert next(make_set(tmp_path, plan_set(SMALL))) == 1


def test_ctrl_c_is_not_lost_while_the_library_speaks(tmp_path):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), speech.synthesizer([speech.BASES["bass"]]) as speaker:
        for _ in range(2_000):
            speaker.say("This goes on and on until somebody stops it.", 0)


def test_one_process_at_a_time(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    with open(folder / "spectrograms.npy.part", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is making this set"):
            made(folder)


def test_a_finished_set_is_checked_and_another_is_refused(copied):
    assert list(make_set(copied, plan_set(SMALL))) == [80]
    with pytest.raises(InputError, match=r"already holds another set \(utterances is 80, seed is 0\)"):
        made(copied, SpectrogramRequest(utterances=80, seed=5))
    path = copied / "spectrograms.npy"
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="its bytes have changed since it was made"):
        made(copied)


def test_more_sentences_than_there_are_and_too_few_are_refused():
    with pytest.raises(SettingsError, match="100,000 requested"):
        plan_set(SpectrogramRequest(utterances=100_000))
    said = CliRunner().invoke(app, ["data", "voices", "x", "--utterances", "79"])
    assert isinstance(said.exception, SettingsError) and "utterances" in str(said.exception)
    assert not os.path.exists("x")


def test_without_the_extra_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(InputError, match=r"needs the extra voices.*pip install 'homespun\[voices\]'"):
        made(tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_a_temporary_folder_with_a_long_path_is_explained(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 200)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(InputError, match="set TMPDIR to a shorter folder"), speech.synthesizer([speech.BASES["bass"]]):
        pass


def test_users_like_one_voice_and_test_on_other_sentences(whole):
    federation = voices(whole)
    assert len(federation.contexts) == 20 and np.bincount(federation.group_of).tolist() == [2] * 20
    some, group = federation.examples(3), int(federation.group_of[3])
    images = np.asarray(some.images)
    assert some.images.shape == images.shape == (24, 200, 375) and not isinstance(images, np.memmap)
    assert np.array_equal(some.labels == 1, some.contexts == group)
    known = {image.tobytes() for image in federation.testing.images}
    assert [image.tobytes() in known for image in images] == (some.parts == TEST).tolist()


def test_the_paper_has_900_users_and_two_populations(whole):
    balanced = load_federation("voices", settings={"folder": str(whole), **FEW})
    assert np.bincount(balanced.group_of).tolist() == [45] * 20
    counts = np.bincount(voices(whole, users=900, balance="imbalanced").group_of)
    assert counts.tolist() == [180, 36, 36, 36, 36, 72, *[36] * 14]


def test_a_moved_set_is_the_same_corpus(whole, tmp_path):
    moved = shutil.copytree(whole, tmp_path / "elsewhere")
    assert voices(moved).fingerprint == voices(whole).fingerprint != voices(whole, seed=1).fingerprint


def test_a_set_too_small_for_its_users_says_so(small):
    with pytest.raises(DataError, match=r"voices: for training a user needs 9 images of one kind, .* only 3"):
        voices(small)


def test_a_missing_set_names_the_command_that_makes_it():
    with pytest.raises(DataError, match=r"runs/voices: no voices found\. .* `homespun data voices runs/voices`"):
        load_federation("voices")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "spectrograms.npy").unlink(), "spectrograms.npy: missing"),
        (lambda folder: os.truncate(folder / "spectrograms.npy", 5_999_000), "5,999,000 bytes, expected 6,000,128"),
        (lambda folder: _overwrite(folder / "spectrograms.npy", b"not numpy"), "its header does not match voices.json"),
        (lambda folder: (folder / "voices.json").write_text('{"schema": 1'), "damaged, or not of schema 1"),
        (lambda folder: _change(folder, schema=2), "damaged, or not of schema 1"),
        (lambda folder: (folder / "voices.json").write_bytes(b"\xff\xfe"), "voices.json: cannot be read"),
        (lambda folder: _change(folder, voice=[0] * 80), "not all voices in training and testing"),
        (lambda folder: _change(folder, sentence=["Hello."]), "1 entries of sentence"),
    ],
)
def test_a_damaged_set_is_refused(copied, damage, message):
    damage(copied)
    with pytest.raises(DataError, match=message):
        voices(copied)


def _overwrite(path, start):
    with open(path, "r+b") as file:
        file.write(start)


def _change(folder, **values):
    path = folder / "voices.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_the_command_prints_what_it_made(tmp_path):
    said = CliRunner().invoke(app, ["data", "voices", "few", "--utterances", "80", "--seed", "3", "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    assert (found["utterances"], found["training"], found["testing"], found["seed"]) == (80, 60, 20, 3)
    assert found["sha256"] == verify_set(tmp_path / "few").sha256
    assert "voices: 80/80" in said.stderr
