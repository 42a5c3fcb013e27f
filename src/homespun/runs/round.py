"""The only implementation of a round.

broadcast -> local training -> client halves -> sum -> server halves -> server rule -> next state
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan

from homespun.core.intake import rejected_error
from homespun.core.messages import Broadcast, ServerState, require_finite, require_valid
from homespun.core.method import BuiltMethod
from homespun.core.progress import Show, silent, start_count
from homespun.core.records import RoundRecord
from homespun.core.statistics import bests, sums
from homespun.core.threads import one_thread
from homespun.core.transforms import NO_TRANSFORMS, Transforms, broadcast_bytes
from homespun.core.tree import Tree
from homespun.engines.protocol import Engine


@one_thread()
def run_round(
    built: BuiltMethod,
    engine: Engine,
    state: ServerState,
    cohort: Sequence[str],
    *,
    transforms: Transforms = NO_TRANSFORMS,
    server_users: Callable[[Broadcast], Tree] = lambda _: {},
    progress: Show = silent,
) -> tuple[ServerState, RoundRecord]:
    """Run one round with the users of `cohort`. Returns the next state and a record of what may be disclosed.

    `server_users` computes the statistics of users that the server itself holds. Nothing is written to disk. If this
    raises, the state and the clients' private parameters are unchanged.
    """
    started, broadcast = time.perf_counter(), state.broadcast()
    transforms.before_round(broadcast)
    shown = silent if transforms.hides_cohort else progress
    trained = engine.train(broadcast, cohort, done=start_count(shown, f"round {state.round + 1}", total=len(cohort)))
    # If all clients have equal weight, rejected updates count as zero, however many there are: stopping would disclose
    # their number.
    if not transforms.equal_clients and trained.rejected and 2 * len(trained.rejected) >= len(cohort):
        who = f"{len(trained.rejected)} of {len(cohort)} updates"
        raise rejected_error(who, trained.rejected, round=state.round)
    declared = built.method.local.statistics
    require_valid(trained.update, broadcast, statistics=sums(declared), best=bests(declared), clients=len(cohort))
    stacked = server_users(broadcast)  # before anything is released
    update = transforms.on_server(trained.update, broadcast)
    update = replace(update, statistics={**update.statistics, **stacked})
    following = built.method.server(state, update)
    require_finite(following)
    examples = update.metrics["examples"]
    record = RoundRecord(
        round=following.round,
        clients=update.clients,
        examples=max(0, int(examples)),
        loss=update.metrics["loss"] / max(1.0, examples) if update.clients else nan,
        rejected=len(trained.rejected),
        seconds=time.perf_counter() - started,
        down_bytes=broadcast_bytes(broadcast, clients=len(cohort)),
        up_bytes=trained.sent_bytes,
    )
    disclosed = transforms.disclosed(record, broadcast, update)
    engine.confirm(broadcast.round, weight=update.weight)  # last: nothing after it may fail
    return following, disclosed
