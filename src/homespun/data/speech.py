"""Offline speech synthesis with espeak-ng, in twenty voices that are mixtures of eight base voices.

espeak-ng is a formant synthesizer: a voice is a handful of numbers, so voices can be interpolated. The shared library
and its data come with the package `espeakng-loader` (the extra `voices`; espeak-ng is GPL-3).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from homespun.core.errors import InputError

EXTRA = "pip install 'homespun[voices]'"
SAMPLE_RATE = 22_050
LANGUAGE = "en-us"
_FILES = ("phondata", "phonindex", "phontab", "intonations", "en_dict", "lang/gmw/en-US")

# Constants of speak_lib.h
_SYNCHRONOUS = 2  # pass the samples to our callback, and return when all are synthesized
_DO_NOT_EXIT = 0x8000  # return an error code instead of exiting the process
_UTF8 = 1
_RATE, _PITCH = 1, 3  # parameters; pitch 50 is the voice's own
_BUFFER_MS = 1_000


class SpeakerVoice(NamedTuple):
    """The parameters of an espeak-ng voice variant. Those without a unit are in percent of the default voice."""

    pitch_low_hz: float
    pitch_high_hz: float
    formant_1: float  # frequency of each formant
    formant_2: float
    formant_3: float
    formant_4: float  # and of all formants above
    low_strength: float  # of formants 1 and 2
    high_strength: float  # of the formants above
    width: float  # of all formants
    voicing: float
    consonants: float
    words_per_minute: float


# Distinct in several parameters at once, like eight human speakers.
BASES = {
    "bass": SpeakerVoice(62, 92, 88, 90, 92, 92, 110, 80, 90, 110, 85, 150),
    "baritone": SpeakerVoice(85, 130, 96, 104, 100, 97, 100, 95, 120, 100, 110, 185),
    "tenor": SpeakerVoice(112, 180, 104, 97, 106, 102, 95, 115, 100, 95, 100, 165),
    "reedy": SpeakerVoice(130, 165, 112, 92, 98, 108, 80, 130, 80, 85, 125, 200),
    "contralto": SpeakerVoice(150, 230, 98, 108, 112, 106, 105, 85, 140, 105, 90, 155),
    "mezzo": SpeakerVoice(175, 250, 110, 112, 104, 112, 95, 105, 110, 100, 120, 195),
    "soprano": SpeakerVoice(205, 310, 116, 116, 116, 118, 90, 110, 130, 95, 105, 170),
    "child": SpeakerVoice(240, 330, 126, 122, 124, 126, 100, 90, 100, 110, 80, 140),
}
# Each pair gives two voices. Both are mixtures of the same base voices, which makes them the hardest to tell apart.
PAIRS = (
    ("bass", "baritone"),
    ("baritone", "tenor"),
    ("tenor", "reedy"),
    ("reedy", "contralto"),
    ("contralto", "mezzo"),
    ("mezzo", "soprano"),
    ("soprano", "child"),
    ("child", "bass"),
    ("bass", "contralto"),
    ("tenor", "soprano"),
)
FIRST_SHARES = (0.6, 0.4)  # of the pair's first base voice


def voice_mixtures() -> list[dict[str, float]]:
    """The mixture of each of the twenty voices. Voice v belongs to pair v // 2."""
    return [{first: share, second: round(1 - share, 6)} for first, second in PAIRS for share in FIRST_SHARES]


def mix_voices(mixture: dict[str, float]) -> SpeakerVoice:
    """The voice whose parameters are the weighted means of those of its base voices."""
    return SpeakerVoice(
        *(sum(share * BASES[name][at] for name, share in mixture.items()) for at in range(len(SpeakerVoice._fields)))
    )


def espeak_variant(voice: SpeakerVoice, name: str) -> str:
    """The voice as an espeak-ng variant file.

    It has neither flutter nor breath: espeak-ng draws those from a state that persists between utterances, but an
    utterance must not depend on earlier ones.
    """
    frequencies = (100, voice.formant_1, voice.formant_2, voice.formant_3, *[voice.formant_4] * 5)
    strengths = (100, *[voice.low_strength] * 2, *[voice.high_strength] * 6)
    lines = [
        "language variant",
        f"name {name}",
        f"pitch {voice.pitch_low_hz:.0f} {voice.pitch_high_hz:.0f}",
        "flutter 0",
        "roughness 0",
        f"voicing {voice.voicing:.0f}",
        f"consonants {voice.consonants:.0f} {voice.consonants:.0f}",
        *(
            f"formant {number} {frequency:.0f} {strength:.0f} {voice.width:.0f}"
            for number, (frequency, strength) in enumerate(zip(frequencies, strengths, strict=True))
        ),
    ]
    return "\n".join(lines) + "\n"


class Synthesizer:
    """Speaks sentences in these voices. There can be only one per process, as espeak-ng is global."""

    def __init__(self, library: Any, voices: Sequence[SpeakerVoice]) -> None:
        self._library, self._voices = library, voices
        self._chunks: list[np.ndarray] = []
        self._spoken: int | None = None
        self._listener = _LISTENER(self._listen)  # kept alive here: the library holds no Python reference
        library.espeak_SetSynthCallback(self._listener)

    def say(self, text: str, voice: int, *, pitch: int = 50, pace: float = 1.0) -> np.ndarray:
        """The samples (int16) of a text. `pitch` is from 0 to 100, where 50 is the voice's own; `pace` is a factor."""
        if voice != self._spoken:
            _require_success(
                self._library.espeak_SetVoiceByName(f"{LANGUAGE}+{_variant_name(voice)}".encode()), "set a voice"
            )
            self._spoken = voice
        rate = round(self._voices[voice].words_per_minute * pace)
        _require_success(self._library.espeak_SetParameter(_RATE, rate, 0), "set the rate")
        _require_success(self._library.espeak_SetParameter(_PITCH, pitch, 0), "set the pitch")
        self._chunks.clear()
        data = text.encode() + b"\0"
        with _delay_interrupts():
            _require_success(
                self._library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 1, 0, _UTF8, None, None), "speak"
            )
        return np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.int16)

    def _listen(self, samples: Any, count: int, _events: Any) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0  # continue


_LISTENER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@contextmanager
def _delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block: an exception raised in a callback of a C library would be lost."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    waiting: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if waiting:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def synthesizer(voices: Sequence[SpeakerVoice]) -> Iterator[Synthesizer]:
    """espeak-ng with these voices, inside the block."""
    loader = _loader()
    library = ctypes.CDLL(loader.get_library_path())
    # A separate folder for our variants, with a short path: espeak-ng fails above about 130 characters.
    with tempfile.TemporaryDirectory(prefix="voices-") as folder:
        data = Path(folder) / "espeak-ng-data"
        _write_data(data, Path(loader.get_data_path()), voices)
        rate = library.espeak_Initialize(_SYNCHRONOUS, _BUFFER_MS, os.fsencode(folder), _DO_NOT_EXIT)
        # It returns a sample rate even if it could not read its data, but then reports another data path.
        if rate != SAMPLE_RATE or _data_path(library) != os.fsencode(data):
            raise InputError(
                f"espeak-ng does not start with its data in {folder}. It supports paths of up to about 130 characters: "
                "set TMPDIR to a shorter folder."
            )
        try:
            yield Synthesizer(library, voices)
        finally:
            library.espeak_Terminate()


def _data_path(library: Any) -> bytes:
    path = ctypes.c_char_p()
    library.espeak_Info(ctypes.byref(path))
    return path.value or b""


def versions() -> dict[str, str]:
    """Versions of the synthesizer."""
    from importlib.metadata import version

    library = ctypes.CDLL(_loader().get_library_path())
    library.espeak_Info.restype = ctypes.c_char_p
    return {"espeak-ng": library.espeak_Info(None).decode(), "espeakng-loader": version("espeakng-loader")}


def _loader() -> ModuleType:
    try:
        return importlib.import_module("espeakng_loader")
    except ImportError as error:
        raise InputError(f"speech synthesis needs the extra voices. Install it with `{EXTRA}`.") from error


def _write_data(folder: Path, source: Path, voices: Sequence[SpeakerVoice]) -> None:
    variants = folder / "voices" / "!v"
    variants.mkdir(parents=True)
    (folder / "lang" / "gmw").mkdir(parents=True)
    for name in _FILES:
        shutil.copyfile(source / name, folder / name)
    for number, voice in enumerate(voices):
        name = _variant_name(number)
        (variants / name).write_text(espeak_variant(voice, name), encoding="ascii")


def _variant_name(voice: int) -> str:
    return f"homespun{voice}"


def _require_success(code: int, what: str) -> None:
    if code != 0:
        raise InputError(f"espeak-ng could not {what} (code {code}). Reinstall the extra: {EXTRA}")
