"""Commands for one person: personalize, predict, and the vault's list, export and forget."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import (
    ContextColumn,
    Folder,
    Json,
    LabelColumn,
    TextColumn,
    Trust,
    UserColumn,
    data_settings_from,
    print_json,
)
from homespun.core.errors import InputError
from homespun.core.spelling import readings
from homespun.system.terminal import say

Listed = Annotated[str, typer.Argument(help="The user's id, as `vault list` shows it.")]

vault_app = typer.Typer(help="Private parameters, for the person they belong to.", no_args_is_help=True)


def personalize(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="The user's own examples: a table, or for language a .txt or .md file.")],
    user: Annotated[str | None, typer.Option(help="Who; a table with one user says it itself.")] = None,
    context: Annotated[str | None, typer.Option(help="The setting of a text, if the run knows several.")] = None,
    steps: Annotated[int | None, typer.Option(help="Gradient steps. Default: as the run was set.")] = None,
    generated: Annotated[
        bool, typer.Option("--generated", help="By the generator alone, without gradient steps, if the method has one.")
    ] = False,
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Learn a new user's private parameters from a file of their own. Nothing is uploaded.

    A fifth of the examples is held out to show what it brought; then all are used, and the result goes
    into the run's vault. A method of language learns from a plain text; a table needs no label then.

    Most methods learn by gradient steps. One that generates (fedperc_generated) reads the parameters off the text in
    one pass; the output says which way it was.

    Example: homespun personalize runs/furl-dialects mine.csv --user ada

    Example: homespun personalize runs/fedperc-sotu mine.txt --user ada --context written

    Example: homespun personalize runs/fedperc_generated-sotu mine.txt --user ada --context written --generated
    """
    from homespun.cli.console import out
    from homespun.personalization.new_user import personalize_from_file

    columns = {"user": user_column, "context": context_column, "text": text_column, "label": label_column}
    source = data_settings_from(str(file), [], **columns)
    found = personalize_from_file(
        folder, source, user=user, context=context, steps=steps, generated=generated, trust=trust
    )
    if json_output:
        print_json(found)
        return
    out.print(found["message"])


def predict(
    folder: Folder,
    texts: Annotated[list[str], typer.Argument(help="One or more texts.")],
    user: Annotated[str, typer.Option(help="Whose labels.")],
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """The labels a user would give to texts, with their own private parameters.

    Example: homespun predict runs/furl-dialects --user user-000003 "some text"
    """
    from homespun.personalization.user import require_person, typed_user
    from homespun.runs.training import reopen

    with reopen(folder, trust=trust) as run:
        person = require_person(run, typed_user(run, user))
        labels = person.predict(texts)
    if json_output:
        print_json(
            {
                "user": person.user,
                "predictions": [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)],
            }
        )
        return
    for text, label in zip(texts, labels, strict=True):
        say(f"{label}\t{text}")


@vault_app.command("list")
def vault_list(
    folder: Folder,
    limit: Annotated[int, typer.Option(help="At most so many users.")] = 20,
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Entries set aside as damaged.")] = False,
    json_output: Json = False,
) -> None:
    """Who has private parameters in this run. Where cohorts are secret, no round is shown.

    Example: homespun vault list runs/furl-dialects
    """
    from homespun.cli.console import out, table
    from homespun.runs.vault import Vault

    with Vault.open(folder, read_only=True) as vault:
        header: tuple[str, ...] = ("user", "round", "reason" if quarantine else "bytes")
        rows: list[tuple[object, ...]] = [(one.user, one.round, one.reason) for one in vault.quarantined()]
        if not quarantine:
            rows = [(one.user, one.round, one.size_bytes) for one in vault.entries(limit=limit)]
        privacy = (vault.identity.get("run") or {}).get("privacy") or {}
        if privacy.get("noise") == "central" and not privacy.get("insecure"):
            header, rows = (header[0], header[2]), [(row[0], row[2]) for row in rows]
        count = vault.count
    if json_output:
        print_json({"users": count, "entries": [dict(zip(header, row, strict=True)) for row in rows]})
        return
    out.print(table(f"{count} users", header, [[str(cell) for cell in row] for row in rows]))


@vault_app.command("export")
def vault_export(
    folder: Folder,
    user: Listed,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .safetensors file.")],
) -> None:
    """One user's private parameters as a safetensors file, readable by them alone.

    Example: homespun vault export runs/furl-dialects user-000003 -o mine.safetensors
    """
    from homespun.runs.vault import Vault
    from homespun.system.disk import write_whole

    with Vault.open(folder, read_only=True) as vault:
        content = vault.export(next((one for one in readings(user) if vault.private(one) is not None), user))
    if os.path.lexists(output):
        raise InputError(f"{output}: there is such a file already. Name another.")
    say(write_whole(output, content, mode=0o600))


@vault_app.command("forget")
def vault_forget(folder: Folder, user: Listed) -> None:
    """Remove one user's private parameters for good.

    Example: homespun vault forget runs/furl-dialects user-000003
    """
    from homespun.runs.vault import Vault

    with Vault.open(folder) as vault:
        name = next((one for one in readings(user) if vault.forget(one)), None)
        if name is None:
            raise InputError(f"{folder}: nothing is kept of user {user!r}.")
    say(f"forgotten: {name}")
