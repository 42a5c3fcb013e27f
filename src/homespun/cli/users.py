"""Commands for one user: personalize, predict, and vault list, export and forget."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import (
    ContextColumn,
    ConversationColumn,
    Folder,
    Json,
    LabelColumn,
    ProfileColumn,
    TextColumn,
    Trust,
    UserColumn,
    data_settings_from,
    print_json,
)
from homespun.core.errors import InputError
from homespun.core.escaping import name_candidates
from homespun.system.terminal import say

Listed = Annotated[str, typer.Argument(help="Name of the user, as in `vault list`.")]

vault_app = typer.Typer(help="List, export or remove the private parameters of users.", no_args_is_help=True)


def personalize(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="Examples of the user: a table, or .txt or .md for a language method.")],
    user: Annotated[str | None, typer.Option(help="Name of the user. Default: the only user of the table.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the text, if the run has several.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of gradient steps. Default: as in the run.")] = None,
    generated: Annotated[
        bool, typer.Option("--generated", help="Use only the method's generator, without gradient steps.")
    ] = False,
    user_column: UserColumn = None,
    context_column: ContextColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    conversation_column: ConversationColumn = None,
    profile_column: ProfileColumn = None,
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Learn the private parameters of a new user from their examples.

    \b
    Nothing is uploaded. The gain is measured on a held-out fifth of the examples;
    then all examples are used, and the result is stored in the run's vault.
    Language methods learn from plain text or from a table without labels. Most
    methods take gradient steps; fedperc_generated computes the parameters in one
    pass over the text.

    Example: homespun personalize runs/furl-dialects mine.csv --user ada

    Example: homespun personalize runs/fedperc-sotu mine.txt --user ada --context written
    """
    from homespun.cli.console import out
    from homespun.personalization.new_user import personalize_from_file

    source = data_settings_from(
        str(file),
        [],
        user=user_column,
        context=context_column,
        text=text_column,
        label=label_column,
        conversation=conversation_column,
        profile=profile_column,
    )
    found = personalize_from_file(
        folder, source, user=user, context=context, steps=steps, generated=generated, trust=trust
    )
    if json_output:
        print_json(found)
        return
    out.print(found["message"])


def predict(
    folder: Folder,
    texts: Annotated[list[str], typer.Argument(help="Texts to label.")],
    user: Annotated[str, typer.Option(help="Name of the user.")],
    trust: Trust = [],  # noqa: B006
    json_output: Json = False,
) -> None:
    """Predict the labels that a user would give to texts.

    Example: homespun predict runs/furl-dialects --user user-000003 "some text"
    """
    from homespun.personalization.user import load_user_model, resolve_typed_user
    from homespun.runs.training import reopen

    with reopen(folder, trust=trust) as run:
        model = load_user_model(run, resolve_typed_user(run, user))
        labels = model.predict(texts)
    if json_output:
        print_json(
            {
                "user": model.user,
                "predictions": [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)],
            }
        )
        return
    for text, label in zip(texts, labels, strict=True):
        say(f"{label}\t{text}")


@vault_app.command("list")
def vault_list(
    folder: Folder,
    limit: Annotated[int, typer.Option(help="Maximum number of users to list.")] = 20,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="List entries that were quarantined as damaged.")
    ] = False,
    json_output: Json = False,
) -> None:
    """List the users who have private parameters in a run.

    \b
    The round of each entry is omitted if the cohorts are secret.

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
    output: Annotated[Path, typer.Option("--output", "-o", help="New .safetensors file.")],
) -> None:
    """Export one user's private parameters as a safetensors file.

    \b
    Only the owner of the file can read it.

    Example: homespun vault export runs/furl-dialects user-000003 -o mine.safetensors
    """
    from homespun.runs.vault import Vault
    from homespun.system.disk import write_whole

    with Vault.open(folder, read_only=True) as vault:
        content = vault.export(next((one for one in name_candidates(user) if vault.private(one) is not None), user))
    if os.path.lexists(output):
        raise InputError(f"{output}: already exists. Choose another path.")
    say(write_whole(output, content, mode=0o600))


@vault_app.command("forget")
def vault_forget(folder: Folder, user: Listed) -> None:
    """Permanently remove one user's private parameters.

    Example: homespun vault forget runs/furl-dialects user-000003
    """
    from homespun.runs.vault import Vault

    with Vault.open(folder) as vault:
        name = next((one for one in name_candidates(user) if vault.forget(one)), None)
        if name is None:
            raise InputError(f"{folder}: no private parameters of user {user!r}.")
    say(f"removed the private parameters of {name}")
