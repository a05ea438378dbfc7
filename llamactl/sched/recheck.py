"""What of the queue must be decided again?

A rule that changes what a decision rests on says so here, by scope; the scheduler decides until nothing is left. The
accounts and the queue say it themselves. Too wide a scope costs time, a forgotten one is a request that waits for ever.
"""

from enum import Enum


class Scope(Enum):
    """Which queued loads may come out differently."""

    NEW = "one that has just been queued"
    HEAD = "the first that has to wait: something that holds what it lacks may go now, or may no longer go"
    ALL = "every one: memory, places or loads have changed"


class Agenda:
    """The scopes that are due."""

    def __init__(self) -> None:
        self._scopes: set[Scope] = set()
        self._new: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._scopes)

    def __contains__(self, scope: Scope) -> bool:
        return scope in self._scopes

    @property
    def new(self) -> list[str]:
        """Models that have just been queued."""
        return self._new

    def add(self, scope: Scope, model: str = "") -> None:
        """Have this scope decided again; `model` goes with NEW."""
        self._scopes.add(scope)
        if scope is Scope.NEW:
            self._new.append(model)
