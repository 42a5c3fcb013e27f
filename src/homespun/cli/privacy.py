"""Commands for what has been released of a data set: privacy show, budget, reset, join and cost."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homespun.cli.options import Json, print_json
from homespun.system.terminal import say

if TYPE_CHECKING:
    from homespun.privacy.ledger import Ledger

privacy_app = typer.Typer(
    help="What differential privacy costs, and what was spent on a data set.", no_args_is_help=True
)

Source = Annotated[str, typer.Argument(help="The data: a file, a folder, or the name of a built-in corpus.")]
Where = Annotated[Path | None, typer.Option("--ledger", help="The ledger's file, if a run named one.")]
Delta = Annotated[float, typer.Option(min=1e-300, max=1 - 1e-9, help="The delta that epsilon is for.")]
Name = Annotated[str, typer.Option(help="The name of the data set, as `show` has it: to be sure that it is meant.")]
Reason = Annotated[str, typer.Option(help="Why; it is written into the ledger.")]


@privacy_app.command("show")
def show(
    source: Source,
    ledger: Where = None,
    delta: Annotated[
        float | None,
        typer.Option(min=1e-300, max=1 - 1e-9, help="The delta that epsilon is for. Default: the budget's, or 1e-5."),
    ] = None,
    json_output: Json = False,
) -> None:
    """What has been spent on a data set since its last reset.

    PLD and RDP are two upper bounds; the smaller one counts.

    Example: homespun privacy show sotu
    """
    from homespun.privacy.accounting import ADJACENCY, bounds

    found = _ledger(source, ledger)
    spent, insecure, unprotected, budget = found.spent(), found.insecure(), found.unprotected(), found.budget()
    delta = delta or (1e-5 if budget is None else budget.delta)
    cost = bounds(spent, delta=delta)
    if json_output:
        releases = [{**vars(release), "rounds": rounds} for release, rounds in sorted(spent.items())]
        print_json({
            "data": found.data, "ledger": str(found.path), "adjacency": ADJACENCY, "delta": delta,
            "epsilon": inf if unprotected else cost.epsilon, "epsilon_of_private_runs": cost.epsilon,
            "pld": cost.pld, "rdp": cost.rdp, "budget": budget and vars(budget), "runs_without_privacy": unprotected,
            "insecure_rounds": insecure, "releases": releases,
        })  # fmt: skip
        return
    total = "infinite" if unprotected else f"{cost.epsilon:.3f}"
    say(f"{found.data}: epsilon {total} at delta {delta:g} (PLD {cost.pld:.3f}, RDP {cost.rdp:.3f}; another: --delta)")
    say(f"  budget: {'none' if budget is None else budget}; adjacency: {ADJACENCY}, the list of users is public")
    for release, rounds in sorted(spent.items()):
        say(
            f"  {rounds} rounds, noise {release.noise_multiplier:.4g} times what one user moves, "
            f"counted with {release.rate:.2%} of the users drawn"
        )
    if unprotected:
        say(f"  runs without privacy: {unprotected}; no epsilon bounds what they released of these data")
    if insecure:
        say(f"  INSECURE: in {insecure} of the rounds noise and cohorts came from a seed and protect nobody")


@privacy_app.command("budget")
def budget(
    source: Source,
    name: Name,
    epsilon: Annotated[float | None, typer.Option(help="What all runs on the data may cost together.")] = None,
    delta: Delta = 1e-5,
    lift: Annotated[bool, typer.Option("--lift", help="No budget from now on.")] = False,
    reason: Reason = "",
    ledger: Where = None,
) -> None:
    """Set or change what a data set may cost over all runs, whatever a run asks for. What was spent stays spent.

    Example: homespun privacy budget votes.csv --epsilon 8 --delta 1e-6 --name votes.csv
    """
    from homespun.core.errors import SettingsError
    from homespun.privacy.ledger import Budget

    if lift == (epsilon is not None):
        raise SettingsError("give either --epsilon or --lift")
    found = _ledger(source, ledger, new=True)
    asked = None if epsilon is None else Budget(epsilon, delta)
    found.set_budget(asked, name=name, reason=reason)
    say(f"{found.data}: {'no budget' if asked is None else f'a budget of {asked}'}, written into {found.path}")


@privacy_app.command("reset")
def reset(source: Source, name: Name, reason: Reason = "", ledger: Where = None) -> None:
    """Begin again at nothing. What was released stays released: do it for other people's data, or with the consent of
    all users. The budget stays.

    Example: homespun privacy reset sotu --name sotu --reason "other people"
    """
    found = _ledger(source, ledger, new=True)
    found.reset(name, reason=reason)
    say(f"{found.data}: the ledger begins again; what was spent before stays written in {found.path}")


@privacy_app.command("join")
def join(
    source: Source,
    other: Annotated[Path, typer.Argument(help="Another ledger's file of the same data.")],
    name: Name,
    ledger: Where = None,
) -> None:
    """Take a second ledger of the same data into the first, so that there is one. The second file is put aside.

    Example: homespun privacy join votes.csv copy/votes.csv.privacy.jsonl --name votes.csv
    """
    from homespun.privacy.finding import joined

    found = _ledger(source, ledger)
    count = joined(found, other, name=name)
    say(f"{found.data}: {count} lines of {other} are in {found.path} now; the file is {other}.joined")


@privacy_app.command("cost")
def cost(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training.")],
    rate: Annotated[float, typer.Option(help="The chance of every user to be drawn for a round; 1: all users.")],
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
    by = accounting.bounds({accounting.Release(rate, noise_multiplier): rounds}, delta=delta)
    if json_output:
        print_json({"noise_multiplier": noise_multiplier, "rounds": rounds, "rate": rate, "delta": delta, **vars(by)})
        return
    found = f"epsilon {by.epsilon:.4f} at delta {delta:g} (PLD {by.pld:.4f}, RDP {by.rdp:.4f})"
    say(f"noise multiplier {noise_multiplier:.4f}: {found}")


def _ledger(source: str, named: Path | None, *, new: bool = False) -> Ledger:
    from homespun.data import builtin_names
    from homespun.privacy.finding import find_ledger

    place = None if source in builtin_names() else Path(source).resolve()  # as loading has it
    return find_ledger(source, place=place, named=named, new=new)
