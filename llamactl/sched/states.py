"""Which states can a model be in, and what may follow what?

The states of a model whose unit exists (an instance) are loading, ready, sleeping and stopping; without a unit it is
unloaded or failed.

    unloaded --+
               +--> loading ---> ready <---> sleeping ---> loading: it wakes, in the process that it has
    failed ----+       |           |            |
                       +-----------+------------+
                       |           |            |
                       v           v            v
                   stopping     failed       unloaded
                       |      its unit ended on its own:
                       v      badly, or well (somebody
                   unloaded   stopped it by hand)

    failed ---> unloaded: its settings have changed, and the old failure says nothing of these.

    loading ---> sleeping: it was found asleep. sleeping ---> ready: nobody has seen it wake.

A stop that is only asked for is no state: a model stays `ready` until its instance has agreed to stop.
A unit that ends badly while it is stopping was wanted gone and is `unloaded`, not `failed`.
"""

from llamactl.protocol.values import State

TRANSITIONS: dict[State, frozenset[State]] = {
    State.UNLOADED: frozenset({State.LOADING}),
    State.LOADING: frozenset({State.READY, State.SLEEPING, State.STOPPING, State.FAILED, State.UNLOADED}),
    State.READY: frozenset({State.SLEEPING, State.STOPPING, State.FAILED, State.UNLOADED}),
    State.SLEEPING: frozenset({State.LOADING, State.READY, State.STOPPING, State.FAILED, State.UNLOADED}),
    State.STOPPING: frozenset({State.UNLOADED}),
    State.FAILED: frozenset({State.LOADING, State.UNLOADED}),
}

RUNNING = frozenset({State.LOADING, State.READY, State.SLEEPING, State.STOPPING})
"""States in which a unit exists, takes memory and counts towards `max_loaded`."""


class IllegalTransition(Exception):
    """The scheduler tried a change of state that the table does not have: a bug."""


def check_transition(model: str, before: State, after: State) -> None:
    """Raise IllegalTransition unless the table allows it."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(f"cannot change model {model!r} from {before} to {after}: not in the table")
