"""The command that pretrains a reply model for dialogue methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import (
    ContextColumn,
    ConversationColumn,
    DataSet,
    Json,
    TextColumn,
    UserColumn,
    data_settings_from,
    print_json,
)
from homespun.core.settings import parse_overrides


def seq2seq(
    data: Annotated[str, typer.Option("--data", "-d", help="File of dialogues; see docs/data.md.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", "-f", help="Folder of the run. Default: runs/seq2seq[-inverse].")
    ] = None,
    inverse: Annotated[
        bool, typer.Option("--inverse", help="Train the model of prompts given replies, for reranking.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data. Default: 10.")] = None,
    licence: Annotated[str, typer.Option(help="Licence of the data, for the model card.")] = "",
    settings: Annotated[
        list[str], typer.Option("--set", "-s", metavar="NAME=VALUE", help="Setting; see docs/settings.md.")
    ] = [],  # noqa: B006
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    conversation_column: ConversationColumn = None,
    text_column: TextColumn = None,
    json_output: Json = False,
) -> None:
    """Pretrain a reply model on public dialogues: stage 1 of FedNLG.

    \b
    Pairs are two consecutive turns of one conversation by different speakers.
    The model is written to FOLDER/model with a model card. If training is
    interrupted, run the same command again to resume.

    Example: homespun pretrain seq2seq --data movie_dialogs.jsonl.gz --data-set max_words=20
    """
    from homespun.cli.console import counting, err, out
    from homespun.core.settings import parse
    from homespun.pretraining.reply_run import ReplyRequest, finish_reply_run, open_reply_run
    from homespun.pretraining.reply_training import ReplyPretrainSettings

    console = err if json_output else out
    columns = {"user": user_column, "context": context_column, "conversation": conversation_column, "text": text_column}
    values = {**parse_overrides(settings), **({} if epochs is None else {"epochs": epochs})}
    request = ReplyRequest(
        data=data_settings_from(data, data_settings, **columns),
        direction="prompts" if inverse else "replies",
        licence=licence,
        settings=parse(ReplyPretrainSettings, values, where="pretrain seq2seq"),
    )
    folder = folder or Path("runs/seq2seq-inverse" if inverse else "runs/seq2seq")
    run = open_reply_run(folder, request, say=console.print)
    with counting(console, "seq2seq", total=run.steps) as show:
        show(run.state.step)
        for step in run.train():
            show(step.step)
            if step.epoch is not None:
                scores = step.epoch
                console.print(
                    f"epoch {scores['epoch']}: held-out perplexity {scores['perplexity']:.1f}, "
                    f"BLEU {100 * scores['bleu']:.2f}"
                )
    results = finish_reply_run(run, request)
    if json_output:
        print_json(results)
        return
    best = results["best"]
    out.print(f"best epoch {best['epoch']}: perplexity {best['perplexity']:.1f}, BLEU {100 * best['bleu']:.2f}")
    out.print(f"Model: {folder / 'model'}")
