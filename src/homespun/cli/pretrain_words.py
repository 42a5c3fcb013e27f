"""The command that pretrains a next-word model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import DataSet, Json, TextColumn, UserColumn, data_settings_from, print_json
from homespun.core.settings import parse_overrides


def nextword(
    data: Annotated[str, typer.Option("--data", "-d", help="File of texts; see docs/data.md.")],
    vocabulary: Annotated[
        str | None,
        typer.Option(help="File whose most frequent words can be suggested. Default: the same file."),
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Folder of the run.")] = Path("runs/nextword"),
    epochs: Annotated[int | None, typer.Option(help="Passes over the data. Default: 3.")] = None,
    licence: Annotated[str, typer.Option(help="Licence of the data, for the model card.")] = "",
    settings: Annotated[
        list[str], typer.Option("--set", "-s", metavar="NAME=VALUE", help="Setting; see docs/settings.md.")
    ] = [],  # noqa: B006
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    text_column: TextColumn = None,
    json_output: Json = False,
) -> None:
    """Pretrain a next-word model on public prose: the first stage of OOV Expansion.

    \b
    The vocabulary is that of the people who will type: name their corpus with
    --vocabulary. Whole users are held out; for articles, name the column of their
    titles with --user-column. The model is written to FOLDER/model with a model
    card. If training is interrupted, run the same command again to resume.

    Example: homespun pretrain nextword --data wikipedia.jsonl.gz --user-column context --vocabulary chat.jsonl.gz
    """
    from homespun.cli.console import counting, err, out
    from homespun.core.settings import parse
    from homespun.data.source import DataSettings
    from homespun.pretraining.word_run import NextWordRequest, finish_word_run, open_word_run
    from homespun.pretraining.word_training import NextWordPretrainSettings

    console = err if json_output else out
    values = {**parse_overrides(settings), **({} if epochs is None else {"epochs": epochs})}
    request = NextWordRequest(
        data=data_settings_from(data, data_settings, user=user_column, text=text_column),
        vocabulary=None if vocabulary is None else DataSettings(source=vocabulary).resolved(),
        licence=licence,
        settings=parse(NextWordPretrainSettings, values, where="pretrain nextword"),
    )
    run = open_word_run(folder, request, say=console.print)
    with counting(console, "nextword", total=run.steps) as show:
        show(run.state.step)
        for step in run.train():
            show(step.step)
            if step.epoch is not None:
                scores = step.epoch
                console.print(
                    f"epoch {scores['epoch']}: EMR3 {100 * scores['emr3']:.1f} %, perplexity {scores['perplexity']:.1f}"
                )
    results = finish_word_run(run, request)
    if json_output:
        print_json(results)
        return
    best = results["best"]
    out.print(f"best epoch {best['epoch']}: EMR3 {100 * best['emr3']:.1f} %")
    out.print(f"Model: {folder / 'model'}")
