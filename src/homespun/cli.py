"""The command `homespun`. Thin: every command calls functions that Python code can call too.

Exit codes: 0 done; 2 the input is wrong; 130 after Ctrl-C; 1 anything else that went wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from homespun.core.errors import HomespunError, InputError, RunError, SettingsError
from homespun.core.settings import parse_overrides

app = typer.Typer(
    help="Personalized federated learning: what makes each person different stays at home.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
data_app = typer.Typer(help="Look at a corpus before training on it.", no_args_is_help=True, rich_markup_mode="rich")
vault_app = typer.Typer(
    help="Private parameters, for the person they belong to.", no_args_is_help=True, rich_markup_mode="rich"
)
app.add_typer(data_app, name="data")
app.add_typer(vault_app, name="vault")

Folder = Annotated[Path, typer.Argument(help="The run's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress goes to stderr.")]
Set = Annotated[list[str], typer.Option("--set", "-s", help="A setting of the method or the run: name=value.")]
Data = Annotated[str, typer.Option("--data", "-d", help="A built-in corpus (dialects, sotu) or a file.")]
DataSet = Annotated[list[str], typer.Option("--data-set", help="A setting of the corpus: name=value.")]
UserColumn = Annotated[str | None, typer.Option(help="Column with the user's id.")]
ContextColumn = Annotated[str | None, typer.Option(help="Column with the context.")]
TextColumn = Annotated[str | None, typer.Option(help="Column with the text.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column with the label.")]


def _data_settings(source: str, settings: list[str], **columns: str | None) -> Any:
    from homespun.files import DataSettings

    if Path(source).exists():
        source = str(Path(source).resolve())  # so that the run can be opened from another folder
    named = {name: column for name, column in columns.items() if column is not None}
    return DataSettings(source=source, columns=named, settings=parse_overrides(settings))


def _print_json(content: Mapping[str, Any]) -> None:
    from homespun.files import without_nan

    sys.stdout.write(json.dumps(without_nan(content)) + "\n")


@app.command()
def train(
    method: Annotated[str, typer.Argument(help="A method (furl, fedavg, central) or a .py file with one.")],
    data: Data = "dialects",
    folder: Annotated[Path | None, typer.Option("--folder", "-f", help="Default: runs/METHOD-DATA.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train.")] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Instead of rounds: times through the data. Default: 10.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Every random draw derives from it.")] = 0,
    settings: Set = [],  # noqa: B006
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    json_output: Json = False,
) -> None:
    """Train a method on a corpus; after a stop, the same command goes on where it was.

    Example: homespun train furl --data dialects --data-set users=200 --epochs 5 --set user_dim=8
    """
    from homespun.console import Reporter
    from homespun.experiment import RESULTS_FILE, single_results, write_results
    from homespun.report.html import write_report
    from homespun.training import prepare, training

    source = _data_settings(
        data, data_settings, user=user_column, context=context_column, text=text_column, label=label_column
    )
    values = parse_overrides(settings)
    length = {"rounds": rounds} if rounds is not None else {"epochs": epochs or 10.0}
    if rounds is not None and epochs is not None:
        raise SettingsError("give either --rounds or --epochs")
    place = folder or Path("runs") / f"{Path(method).stem}-{Path(data).name.split('.')[0]}"
    federation = source.load()
    with prepare(method, federation, folder=place, settings={**length, "seed": seed, **values}, data=source) as run:
        if run.state.round >= run.total_rounds and (place / RESULTS_FILE).exists():
            raise RunError(
                f"{place}: this run is finished ({run.state.round} rounds). Look at {place / 'report.html'}, "
                f"ask for more with --rounds {2 * run.state.round}, or name another --folder."
            )
        reporter = Reporter(to_stderr=json_output)
        if run.state.round:
            reporter.console.print(f"{place}: going on after round {run.state.round}")
        with reporter.following(run, run.method.name) as show:
            for event in training(run):
                show(event)
        found = single_results(run, source, title=run.method.name)
    write_results(place, found)
    _show(found, write_report(found, place), json_output=json_output)


def _show(found: Mapping[str, Any], report: Path, *, json_output: bool) -> None:
    from homespun.console import out, table
    from homespun.report.tables import main_table, newcomer_table

    if json_output:
        _print_json(found)
        return
    for made in (main_table(found), newcomer_table(found)):
        if made is not None:
            out.print(table(*made))
            out.print()
    out.print(f"Report: {report}")


@app.command()
def compare(
    experiment: Annotated[Path, typer.Argument(help="An experiment file; see experiments/.")],
    folder: Annotated[Path | None, typer.Option("--folder", "-f", help="Default: runs/NAME.")] = None,
    json_output: Json = False,
) -> None:
    """Train several configurations over several seeds and put them side by side.

    Example: homespun compare experiments/furl-dialects.toml
    """
    from homespun.experiment import read_experiment

    made = read_experiment(experiment)
    _compare(made, folder or Path("runs") / made.name, json_output=json_output)


def _compare(experiment: Any, folder: Path, *, json_output: bool) -> None:
    from homespun.console import Reporter
    from homespun.experiment import collect, train_all, write_results
    from homespun.report.html import write_report

    train_all(experiment, folder, Reporter(to_stderr=json_output).following)
    found = collect(experiment, folder)
    write_results(folder, found)
    _show(found, write_report(found, folder), json_output=json_output)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--folder", "-f")] = Path("runs/demo"), json_output: Json = False
) -> None:
    """FURL's four configurations on a small synthetic population, in under three minutes on two cores.

    Example: homespun demo
    """
    from homespun.experiment import read_experiment

    with as_file(files("homespun") / "demo.toml") as path:
        _compare(read_experiment(path), folder, json_output=json_output)


@app.command()
def evaluate(
    folder: Folder,
    part: Annotated[str, typer.Option(help="train, eval or test.")] = "test",
    json_output: Json = False,
) -> None:
    """How a run's model fares: for its participants, for newcomers, and against simple controls.

    Example: homespun evaluate runs/furl-dialects
    """
    from homespun.console import out, table
    from homespun.report.tables import percent
    from homespun.training import evaluate as evaluate_run
    from homespun.training import evaluate_controls, evaluate_newcomers, reopen

    if part not in ("train", "eval", "test"):
        raise SettingsError(f"--part is train, eval or test, not {part!r}")
    with reopen(folder) as run:
        controls = evaluate_controls(run, part)  # type: ignore[arg-type]
        found = {
            run.method.name: evaluate_run(run, part),  # type: ignore[arg-type]
            "always the majority label": controls.majority,
            "each user's own majority": controls.own_majority,
            **{f"newcomers, {count} examples": one for count, one in evaluate_newcomers(run).items()},
        }
        round = run.state.round
    if json_output:
        _print_json(
            {
                "round": round,
                "part": part,
                "evaluations": {name: one.to_dict() for name, one in found.items()},
            }
        )
        return
    metric = next(iter(found.values())).headline[0]
    rows = [
        (
            name,
            percent(one.headline[1]),
            percent(one.user_accuracy_mean),
            percent(one.user_accuracy_worst_tenth),
            str(one.users),
        )
        for name, one in found.items()
    ]
    out.print(
        table(
            f"{folder}, {part} part, after round {round}",
            ("", metric, "user mean", "worst tenth", "users"),
            rows,
        )
    )


@app.command()
def personalize(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="The user's own examples, in the corpus's format.")],
    user: Annotated[str | None, typer.Option(help="Who; needed if the file has several users.")] = None,
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    json_output: Json = False,
) -> None:
    """Learn a new user's private parameters from a file of their own. Nothing is uploaded.

    A fifth of the examples is held out to show what it brought; then all are used, and the result goes
    into the run's vault.

    Example: homespun personalize runs/furl-dialects mine.csv --user ada
    """
    from homespun.console import out
    from homespun.newcomer import personalize_from_file

    columns = {"user": user_column, "context": context_column, "text": text_column, "label": label_column}
    source = _data_settings(str(file), [], **columns)
    found = personalize_from_file(folder, source, user=user)
    if json_output:
        _print_json(found)
        return
    out.print(found["message"])


@app.command()
def predict(
    folder: Folder,
    texts: Annotated[list[str], typer.Argument(help="One or more texts.")],
    user: Annotated[str, typer.Option(help="Whose labels.")],
    json_output: Json = False,
) -> None:
    """The labels a user would give to texts, with their own private parameters.

    Example: homespun predict runs/furl-dialects --user user-000003 "some text"
    """
    from homespun.newcomer import require_person
    from homespun.training import reopen

    with reopen(folder) as run:
        labels = require_person(run, user).predict(texts)
    if json_output:
        _print_json(
            {
                "user": user,
                "predictions": [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)],
            }
        )
        return
    for text, label in zip(texts, labels, strict=True):
        print(f"{label}\t{text}")


@app.command()
def report(folder: Folder) -> None:
    """Write report.html and report.md again from a finished run's or comparison's results.json.

    Example: homespun report runs/demo
    """
    from homespun.console import out
    from homespun.experiment import read_results
    from homespun.report.html import write_report

    out.print(str(write_report(read_results(folder), folder)))


@app.command()
def check(method: Annotated[str, typer.Argument(help="A method, or a .py file with one.")]) -> None:
    """Check that a method keeps its contract, and how much one update gives away.

    Example: homespun check furl
    """
    from homespun.contract import check_method

    for line in check_method(method).lines():
        print(line)


@app.command()
def bench(
    workload: Annotated[str, typer.Argument(help="w1.")],
    rounds: Annotated[int, typer.Option(help="Rounds of each side.")] = 5,
    json_output: Json = False,
) -> None:
    """Measure the cohort engine against the frozen reference loop, alternating in one run.

    Example: homespun bench w1
    """
    from homespun.bench import run_workload

    found = run_workload(workload, rounds=rounds)
    if json_output:
        _print_json(found)
        return
    for name, value in found.items():
        print(f"{name:28} {value:.4g}" if isinstance(value, float) else f"{name:28} {value}")


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="A built-in corpus or a file.")],
    users: Annotated[int, typer.Option(help="How many users to show.")] = 3,
    examples: Annotated[int, typer.Option(help="How many examples of each.")] = 3,
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
) -> None:
    """Some users and some of their examples.

    Example: homespun data show dialects --users 2
    """
    federation = _data_settings(
        source, data_settings, user=user_column, context=context_column, text=text_column, label=label_column
    ).load()
    counts = f"{len(federation.labels)} labels, {len(federation.contexts)} contexts"
    print(f"{federation.name}: {len(federation.users):,} users, {counts}")
    for position in range(min(users, len(federation.users))):
        some = federation.examples(position)
        group = federation.group(position)
        print(f"\n{federation.users[position]} ({len(some)} examples{f', {group}' if group else ''})")
        for row in range(min(examples, len(some))):
            notes = []
            if some.contexts is not None:
                notes.append(federation.contexts[int(some.contexts[row])])
            if some.labels is not None:
                notes.append(f"-> {federation.labels[int(some.labels[row])]}")
            print(f"  {some.texts[row][:60]}  {' '.join(notes)}")


@data_app.command("check")
def data_check(
    source: Annotated[str, typer.Argument(help="A built-in corpus or a file.")],
    data_settings: DataSet = [],  # noqa: B006
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    json_output: Json = False,
) -> None:
    """Whether a corpus can be read, and what is in it.

    Example: homespun data check posts.jsonl.gz --label-column context
    """
    from homespun.data.check import check as check_corpus

    federation = _data_settings(
        source, data_settings, user=user_column, context=context_column, text=text_column, label=label_column
    ).load()
    found = check_corpus(federation).to_dict()
    if json_output:
        _print_json(found)
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' '):32} {value}")


@vault_app.command("list")
def vault_list(
    folder: Folder,
    limit: Annotated[int, typer.Option(help="At most so many users.")] = 20,
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Entries set aside as damaged.")] = False,
    json_output: Json = False,
) -> None:
    """Who has private parameters in this run.

    Example: homespun vault list runs/furl-dialects
    """
    from homespun.console import out, table
    from homespun.vault import Vault

    with Vault.open(folder, read_only=True) as vault:
        if quarantine:
            rows = [(entry.user, str(entry.round), entry.reason) for entry in vault.quarantined()]
            header = ("user", "round", "reason")
        else:
            rows = [(entry.user, str(entry.round), str(entry.size_bytes)) for entry in vault.entries(limit=limit)]
            header = ("user", "round", "bytes")
        count = vault.count
    if json_output:
        _print_json({"users": count, "entries": [dict(zip(header, row, strict=True)) for row in rows]})
        return
    out.print(table(f"{count} users", header, rows))


@vault_app.command("export")
def vault_export(
    folder: Folder,
    user: Annotated[str, typer.Argument()],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .safetensors file.")],
) -> None:
    """One user's private parameters as a safetensors file, readable by them alone.

    Example: homespun vault export runs/furl-dialects user-000003 -o mine.safetensors
    """
    import os

    from homespun.vault import Vault

    with Vault.open(folder, read_only=True) as vault:
        content = vault.export(user)
    if output.exists():
        raise InputError(f"{output}: there is such a file already. Name another.")
    with open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    print(output)


@vault_app.command("forget")
def vault_forget(folder: Folder, user: Annotated[str, typer.Argument()]) -> None:
    """Remove one user's private parameters for good.

    Example: homespun vault forget runs/furl-dialects user-000003
    """
    from homespun.vault import Vault

    with Vault.open(folder) as vault:
        if not vault.forget(user):
            raise InputError(f"{folder}: nothing is kept of user {user!r}.")
    print(f"forgotten: {user}")


def main() -> None:
    import torch

    torch.set_num_threads(1)  # the cores belong to the workers
    try:
        code = app(standalone_mode=False) or 0  # a command returns nothing; Ctrl-C comes back as 130
    except click.ClickException as error:
        error.show()
        code = 2
    except HomespunError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = error.exit_code
    except click.Abort:
        code = 130
    if code == 130:
        print("\nStopped. What was committed is kept; the same command goes on.", file=sys.stderr)
    sys.exit(code)
