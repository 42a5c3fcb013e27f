"""Commands for the privacy ledger of a data set: privacy show, budget, reset, join and cost."""

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
    help="Compute the cost of differential privacy and manage the ledger of a data set.", no_args_is_help=True
)


def _check_delta(delta: float | None) -> float | None:
    """A callback rather than a range, which the help would print."""
    if delta is not None and not 1e-300 <= delta <= 1 - 1e-9:
        raise typer.BadParameter(f"{delta:g}: expected a number between 0 and 1")
    return delta


Source = Annotated[str, typer.Argument(help="File, folder or built-in corpus.")]
Where = Annotated[Path | None, typer.Option("--ledger", help="Path of the ledger, if a run set privacy.ledger.")]
Delta = Annotated[float, typer.Option(callback=_check_delta, help="Delta of the guarantee.")]
Name = Annotated[str, typer.Option(help="Name of the data set as `show` prints it, to confirm the change.")]
Reason = Annotated[str, typer.Option(help="Reason, recorded in the ledger.")]


@privacy_app.command("show")
def show(
    source: Source,
    ledger: Where = None,
    delta: Annotated[
        float | None,
        typer.Option(callback=_check_delta, help="Delta of the guarantee. Default: that of the budget, or 1e-5."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Show the privacy spent on a data set since the last reset of its ledger.

    \b
    PLD and RDP are two upper bounds on epsilon. The smaller one counts.

    Example: homespun privacy show sotu
    """
    from homespun.privacy.accounting import ADJACENCY, compute_bounds

    found = _ledger(source, ledger)
    spent, insecure, unprotected, budget = found.spent(), found.insecure(), found.unprotected(), found.budget()
    delta = delta or (1e-5 if budget is None else budget.delta)
    cost = compute_bounds(spent, delta=delta)
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
    say(f"{found.data}: epsilon {total} at delta {delta:g} (PLD {cost.pld:.3f}, RDP {cost.rdp:.3f})")
    say(f"  budget: {'none' if budget is None else budget}; adjacency: {ADJACENCY}, with a public list of users")
    for release, rounds in sorted(spent.items()):
        multiplier, rate = release.noise_multiplier, release.rate
        say(f"  {rounds} rounds with noise multiplier {multiplier:.4g} and sampling rate {rate:.4g}")
    if unprotected:
        say(f"  runs without privacy: {unprotected}; their epsilon is infinite")
    if insecure:
        say(f"  INSECURE: {insecure} of the rounds drew noise and cohorts from a seed and give no protection")


@privacy_app.command("budget")
def budget(
    source: Source,
    name: Name,
    epsilon: Annotated[float | None, typer.Option(help="Maximum epsilon of all runs together.")] = None,
    delta: Delta = 1e-5,
    lift: Annotated[bool, typer.Option("--lift", help="Remove the budget.")] = False,
    reason: Reason = "",
    ledger: Where = None,
) -> None:
    """Set, change or remove the privacy budget of a data set.

    \b
    The budget limits the total epsilon of all runs on the data. Changing it does
    not change what was spent.

    Example: homespun privacy budget votes.csv --epsilon 8 --delta 1e-6 --name votes.csv
    """
    from homespun.core.errors import SettingsError
    from homespun.privacy.ledger import Budget

    if lift == (epsilon is not None):
        raise SettingsError("give either --epsilon or --lift")
    found = _ledger(source, ledger, new=True)
    asked = None if epsilon is None else Budget(epsilon, delta)
    found.set_budget(asked, name=name, reason=reason)
    say(f"{found.data}: {'budget removed' if asked is None else f'budget set to {asked}'} ({found.path})")


@privacy_app.command("reset")
def reset(source: Source, name: Name, reason: Reason = "", ledger: Where = None) -> None:
    """Start the ledger of a data set from zero.

    \b
    A reset does not undo earlier releases. Use it only if the data now belong to
    other users, or if all users consent. The budget and the earlier lines of the
    ledger remain.

    Example: homespun privacy reset sotu --name sotu --reason "other users"
    """
    found = _ledger(source, ledger, new=True)
    found.reset(name, reason=reason)
    say(f"{found.data}: spending reset to zero; earlier lines remain in {found.path}")


@privacy_app.command("join")
def join(
    source: Source,
    other: Annotated[Path, typer.Argument(help="Path of the other ledger of the same data.")],
    name: Name,
    ledger: Where = None,
) -> None:
    """Merge a second ledger of the same data into the first.

    \b
    The second file is renamed to FILE.joined.

    Example: homespun privacy join votes.csv copy/votes.csv.privacy.jsonl --name votes.csv
    """
    from homespun.privacy.ledger_lookup import join_ledgers

    found = _ledger(source, ledger)
    count = join_ledgers(found, other, name=name)
    say(f"{found.data}: merged {count} lines of {other} into {found.path}; renamed it to {other}.joined")


@privacy_app.command("cost")
def cost(
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")],
    rate: Annotated[float, typer.Option(help="Probability of each user to be sampled in a round.")],
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise, in clip norms.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon; computes the noise for it.")] = None,
    delta: Delta = 1e-5,
    json_output: Json = False,
) -> None:
    """Compute the epsilon of rounds, or the noise for a target epsilon.

    Example: homespun privacy cost --rounds 1000 --rate 0.01 --noise-multiplier 1

    Example: homespun privacy cost --rounds 1000 --rate 0.01 --epsilon 2
    """
    from homespun.core.errors import SettingsError
    from homespun.privacy import accounting

    if (epsilon is None) == (noise_multiplier is None):
        raise SettingsError("give either --noise-multiplier or --epsilon")
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = accounting.find_noise_multiplier(epsilon, rate=rate, rounds=rounds, delta=delta)
    by = accounting.compute_bounds({accounting.Release(rate, noise_multiplier): rounds}, delta=delta)
    if json_output:
        print_json({"noise_multiplier": noise_multiplier, "rounds": rounds, "rate": rate, "delta": delta, **vars(by)})
        return
    found = f"epsilon {by.epsilon:.4f} at delta {delta:g} (PLD {by.pld:.4f}, RDP {by.rdp:.4f})"
    say(f"noise multiplier {noise_multiplier:.4f}: {found}")


def _ledger(source: str, named: Path | None, *, new: bool = False) -> Ledger:
    from homespun.data import builtin_names
    from homespun.privacy.ledger_lookup import find_ledger_by_source

    place = None if source in builtin_names() else Path(source).resolve()  # as in loading
    return find_ledger_by_source(source, place=place, named=named, new=new)
