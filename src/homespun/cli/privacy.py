"""Commands for what has been told of a data set: privacy show, reset and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homespun.cli.options import Json, print_json
from homespun.terminal import say

if TYPE_CHECKING:
    from homespun.privacy.ledger import Ledger

privacy_app = typer.Typer(
    help="What differential privacy costs, and what was spent on a data set.", no_args_is_help=True
)

Source = Annotated[str, typer.Argument(help="The data: a file, a folder, or the name of a built-in corpus.")]
Where = Annotated[Path | None, typer.Option("--ledger", help="The ledger's file, if a run named one.")]
Delta = Annotated[float, typer.Option(min=1e-300, max=1 - 1e-9, help="The delta that epsilon is for.")]


@privacy_app.command("show")
def show(source: Source, ledger: Where = None, delta: Delta = 1e-5, json_output: Json = False) -> None:
    """What has been spent on a data set since its last reset.

    Example: homespun privacy show sotu
    """
    from homespun.privacy.accounting import epsilon

    found = _ledger(source, ledger)
    spent, insecure = found.spent(), found.insecure()
    cost = epsilon(spent, delta=delta)
    if json_output:
        releases = [{**vars(release), "rounds": rounds} for release, rounds in sorted(spent.items())]
        told = {"data": found.data, "delta": delta, "epsilon": cost, "insecure_rounds": insecure}
        print_json({**told, "releases": releases})
        return
    say(f"{found.data}: epsilon {cost:.3f} at delta {delta:g} (another: --delta)")
    for release, rounds in sorted(spent.items()):
        say(
            f"  {rounds} rounds, noise {release.noise_multiplier:.4g} times what one user moves, "
            f"counted with {release.rate:.2%} of the users drawn"
        )
    if insecure:
        say(f"  INSECURE: in {insecure} of them noise and cohorts came from a seed and protect nobody")


@privacy_app.command("reset")
def reset(
    source: Source,
    name: Annotated[str, typer.Option(help="The name of the data set, as `show` has it: to be sure that it is meant.")],
    reason: Annotated[str, typer.Option(help="Why; it is written into the ledger.")] = "",
    ledger: Where = None,
) -> None:
    """Begin again at nothing. What was told stays told: do it for other people's data, or with everybody's consent.

    Example: homespun privacy reset sotu --name sotu --reason "other people"
    """
    found = _ledger(source, ledger)
    found.reset(name, reason=reason)
    say(f"{found.data}: the ledger begins again; what was spent before stays written in {found.path}")


@privacy_app.command("cost")
def cost(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training.")],
    rate: Annotated[float, typer.Option(help="The chance of every user to be drawn for a round; 1: everybody.")],
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise, in clip norms.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="What it may cost: gives the noise for it.")] = None,
    delta: Delta = 1e-5,
    json_output: Json = False,
) -> None:
    """What rounds cost, or how much noise they need.

    Example: homespun privacy cost --rounds 1000 --rate 0.01 --noise-multiplier 1

    Example: homespun privacy cost --rounds 1000 --rate 0.01 --epsilon 2
    """
    from homespun.core.errors import SettingsError
    from homespun.privacy import accounting

    if (epsilon is None) == (noise_multiplier is None):
        raise SettingsError("give either --noise-multiplier or --epsilon")
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = accounting.multiplier_for(epsilon, rate=rate, rounds=rounds, delta=delta)
    spending = {accounting.Release(rate, noise_multiplier): rounds}
    by = {way: accounting.epsilon(spending, delta=delta, way=way) for way in ("pld", "rdp")}
    if json_output:
        print_json({"noise_multiplier": noise_multiplier, "rounds": rounds, "rate": rate, "delta": delta, **by})
        return
    say(f"noise multiplier {noise_multiplier:.4f}: epsilon {by['pld']:.4f} at delta {delta:g} (RDP: {by['rdp']:.4f})")


def _ledger(source: str, named: Path | None) -> Ledger:
    from homespun.data import builtin_names
    from homespun.privacy.ledger import find_ledger

    place = None if source in builtin_names() else Path(source).resolve()  # as loading has it
    return find_ledger(source, place=place, named=named)
