"""`load`, `unload`, `restart`: what is asked for one model, or for several, and what does the shell hear of each?

All are asked for at once on one connection: the supervisor puts them in order, and none waits for another one's end or
fails with it. The last word on standard error says what came of each; `--json` puts the same on standard output, an
object for one name, a list for several. Ctrl-C ends only the waiting: what was asked for belongs to the supervisor.

Models that are loaded together may not fit together: the later one then drives out the earlier. So where there were
several, the supervisor is asked at the end which of them are still there.

A restart is an unload and a load right behind it, so that it goes on when nobody waits any more. It is begun only for
models that could be loaded: one that runs although its configuration has become invalid would else be lost.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llamactl.cli.client import Client
from llamactl.cli.output import complain, describe_error, print_json
from llamactl.cli.progress import Board, ProgressLine, describe_progress, describe_unloading
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.names import format_command, quote_name
from llamactl.paths import acquire_paths
from llamactl.protocol.control_socket import Done, ListRequest, LoadRequest, ModelList, Progress, UnloadRequest
from llamactl.protocol.values import State
from llamactl.quantities import format_span

_BENIGN_FIRST = (0, 3, 4, 5, 1, 6)
"""Exit statuses, the least grave first: "not loaded" must not hide that something has failed."""


@dataclass(frozen=True)
class Outcome:
    """What came of one name: a word for people and one for scripts, or an error."""

    model: str
    text: str = ""
    result: str = ""
    seconds: float | None = None
    error: LlamactlError | None = None

    @property
    def exit_status(self) -> int:
        """The exit status that this outcome alone would have: 0, or its error's."""
        return self.error.kind.exit_status if self.error is not None else 0

    def describe(self) -> dict[str, Any]:
        """Describe it for `--json`."""
        if self.error is not None:
            return {"model": self.model, **describe_error(self.error)}
        return {"model": self.model, "result": self.result, "seconds": self.seconds}


def choose_exit_status(statuses: Sequence[int]) -> int:
    """The gravest of several."""
    return max(statuses, key=_BENIGN_FIRST.index, default=0)


# --- commands ---------------------------------------------------------------------------------------------------------


def run_load(args: argparse.Namespace) -> int:
    """Load models side by side and wait until they serve, unless told not to; returns the exit status."""
    names = _list_once(args.names)
    requests = [LoadRequest(id=i, model=name, wait=not args.no_wait) for i, name in enumerate(names, 1)]
    run = _Run(names, "loading")
    with run.watch(), _connect() as client:
        lines = {name: ProgressLine(run.board, name) for name in names}
        for request, answer in run.ask(client, requests, lambda request, told: lines[request.model].show(told)):
            run.end(request.model, _judge_load(args, request.model, answer, lines[request.model].seen))
        if len(names) > 1 and not args.no_wait and run.has_succeeded():
            for error in _find_lost(client.ask(ListRequest(id=len(names) + 1))):
                run.lose(error)
    return run.report(args)


def run_unload(args: argparse.Namespace) -> int:
    """Unload models side by side and wait until they are gone, unless told not to; returns the exit status."""
    run = _Run(_list_once(args.names), "unloading")
    with run.watch(), _connect() as client:
        if args.all:
            run.add(_list_loaded(client, args))
        requests = [
            UnloadRequest(id=i, model=name, now=args.now, wait=not args.no_wait)
            for i, name in enumerate(run.waiting, 1)
        ]
        lines = {name: ProgressLine(run.board, name, describe_unloading) for name in run.waiting}
        for request, answer in run.ask(client, requests, lambda request, told: lines[request.model].show(told)):
            run.end(request.model, _judge_unload(args, request.model, answer))
        if not requests:
            complain("nothing is loaded")
    return run.report(args)


def run_restart(args: argparse.Namespace) -> int:
    """Unload models after their requests, load them again, and wait for both; returns the exit status."""
    names = _list_once(args.names)
    run = _Run(names, "restarting")
    with run.watch(), _connect() as client:
        for request, answer in client.ask_all([ListRequest(id=i, model=name) for i, name in enumerate(names, 1)]):
            error = answer if isinstance(answer, LlamactlError) else _find_obstacle(request.model, answer)
            if error is not None:
                run.end(request.model, Outcome(request.model, error=error))
        requests: list[UnloadRequest | LoadRequest] = []
        for name in run.waiting:
            first = 1 + len(names) + len(requests)
            requests.append(UnloadRequest(id=first, model=name, now=args.now, wait=not args.no_wait))
            requests.append(LoadRequest(id=first + 1, model=name, wait=not args.no_wait))
        going = {name: ProgressLine(run.board, name, describe_unloading) for name in run.waiting}
        coming = {name: ProgressLine(run.board, name, describe_progress) for name in run.waiting}

        def show(request: UnloadRequest | LoadRequest, progress: Progress) -> None:
            if isinstance(request, UnloadRequest):
                going[request.model].show(progress)
            elif request.model not in going:  # until then it waits for the other half
                coming[request.model].show(progress)

        for request, answer in run.ask(client, requests, show):
            name = request.model
            if isinstance(request, UnloadRequest):
                going.pop(name)
                failed = isinstance(answer, LlamactlError) and answer.code is not ErrorCode.NOT_LOADED
                if failed:
                    run.end(name, Outcome(name, error=answer))
            elif name in run.waiting:
                run.end(name, _judge_restart(args, name, answer))
    return run.report(args)


# --- the answers ------------------------------------------------------------------------------------------------------


def _judge_load(args: argparse.Namespace, name: str, answer: Done | LlamactlError, waited: bool) -> Outcome:
    if isinstance(answer, LlamactlError):
        if answer.code is not ErrorCode.ALREADY_LOADED:
            return Outcome(name, error=answer)
        return Outcome(answer.model or name, "already loaded", "already loaded")
    model = answer.model or name
    if args.no_wait:
        return Outcome(model, f"will be loaded: {format_command('status', name)}", "queued")
    if not waited and answer.seconds == 0:
        return Outcome(model, "already loaded", "already loaded")
    return Outcome(model, f"ready in {format_elapsed(answer.seconds)}", "ready", round(answer.seconds, 3))


def _judge_unload(args: argparse.Namespace, name: str, answer: Done | LlamactlError) -> Outcome:
    if isinstance(answer, LlamactlError):
        if args.all and answer.code is ErrorCode.NOT_LOADED:  # it has ended since the list was made
            return Outcome(name, "unloaded", "unloaded")
        return Outcome(name, error=answer)
    model = answer.model or name
    if args.no_wait and args.now:
        return Outcome(model, "is being unloaded now, running requests are cut", "queued")
    if args.no_wait:
        return Outcome(model, "will be unloaded when its requests have ended", "queued")
    return Outcome(model, "unloaded", "unloaded", round(answer.seconds, 3))


def _judge_restart(args: argparse.Namespace, name: str, answer: Done | LlamactlError) -> Outcome:
    if isinstance(answer, LlamactlError):
        return Outcome(name, error=answer)
    model = answer.model or name
    if args.no_wait and args.now:
        return Outcome(model, "is being unloaded now, running requests are cut; then it is loaded", "queued")
    if args.no_wait:
        return Outcome(model, "will be unloaded when its requests have ended, and then loaded", "queued")
    return Outcome(model, f"ready in {format_elapsed(answer.seconds)}", "ready", round(answer.seconds, 3))


def _find_obstacle(name: str, listing: ModelList) -> LlamactlError | None:
    """Why a model could not be loaded once it is unloaded."""
    [model] = listing.models
    if not model.invalid:
        return None
    message = f"cannot restart {quote_name(model.name)}: its configuration is invalid: {model.invalid}"
    return LlamactlError(
        ErrorCode.INVALID_MODEL,
        message,
        hint="it was left as it is; `llamactl check` shows all problems; once they are mended, `llamactl reload`",
        model=model.name,
    )


def _find_lost(listing: ModelList) -> Iterator[LlamactlError]:
    """What is to be said of the models that are not loaded, of those that have been just now."""
    for model in listing.models:
        if model.state not in (State.UNLOADED, State.STOPPING, State.FAILED):
            continue
        has_failed = model.state is State.FAILED
        what = "it has failed" if has_failed else "it was unloaded"
        if model.state is State.UNLOADED and model.ended is not None and model.ended.for_model:
            what += f" to make room for {quote_name(model.ended.for_model)}"
        yield LlamactlError(
            ErrorCode.INSTANCE_DIED if has_failed else ErrorCode.DOES_NOT_FIT,
            f"{quote_name(model.name)} is gone again: {what}",
            hint=f"`{format_command('status', model.name)}` says more",
            model=model.name,
        )


def format_elapsed(seconds: float) -> str:
    """As progress lines say it: "0.8 s" below a minute."""
    return f"{seconds:.1f} s" if seconds < 60 else format_span(seconds)


# --- names and what becomes of them -----------------------------------------------------------------------------------


def _list_once(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _list_loaded(client: Client, args: argparse.Namespace) -> list[str]:
    """All that an unload can end: what is loaded, and what is being loaded or waits for it."""
    listing: ModelList = client.ask(ListRequest(id=1))
    ended = (State.UNLOADED, State.FAILED, *((State.STOPPING,) if args.no_wait else ()))
    return [model.name for model in listing.models if model.state not in ended]


def _connect() -> Client:
    return Client(acquire_paths().control_socket)


class _Run:
    """Names that are waited for, and what came of the others."""

    def __init__(self, names: Sequence[str], doing: str) -> None:
        self.board = Board(sys.stderr)
        self.waiting: list[str] = []
        self._names: list[str] = []
        self._doing = doing
        self._asked = False
        self._outcomes: dict[str, Outcome] = {}
        self.add(names)

    def add(self, names: Sequence[str]) -> None:
        self.waiting += names
        self._names += names

    def ask(
        self, client: Client, requests: Sequence[Any], show: Callable[[Any, Progress], None]
    ) -> Iterator[tuple[Any, Any]]:
        """As Client.ask_all. From now on the supervisor goes on by itself."""
        self._asked = True
        return client.ask_all(requests, show)

    def end(self, name: str, outcome: Outcome) -> None:
        """What came of a name. Said at once; of a single one, an error is whoever called's to raise."""
        self.waiting.remove(name)
        self._outcomes[name] = outcome
        if outcome.error is None:
            self.board.finish(name, outcome.text)
        elif len(self._names) > 1:
            self.board.complain(name, str(outcome.error))
        else:
            self.board.clear()

    def has_succeeded(self) -> bool:
        """Whether anything has come of any name."""
        return any(outcome.error is None for outcome in self._outcomes.values())

    def lose(self, error: LlamactlError) -> None:
        """A model is gone that may have been one of these."""
        for name, outcome in self._outcomes.items():
            if outcome.error is None and outcome.model == error.model:
                self._outcomes[name] = Outcome(name, error=error)
                self.board.complain(name, str(error))

    @contextmanager
    def watch(self) -> Iterator[None]:
        """While it is waited: what ends the waiting is said, and what it means for each name."""
        try:
            yield
        except KeyboardInterrupt:
            self.board.clear()
            names = self.waiting
            command = format_command("status", names[0]) if len(names) == 1 else "llamactl ps"
            which = f" {', '.join(names)}" if len(self._names) > 1 else ""
            if names and self._asked:
                complain(f"still {self._doing}{which} in the background: {command}")
            raise
        except LlamactlError as error:
            self.board.clear()
            if len(self._names) < 2:
                raise
            complain(str(error))
            for name in self.waiting:
                self._outcomes[name] = Outcome(name, error=error)
        except BaseException:
            self.board.clear()
            raise

    def report(self, args: argparse.Namespace) -> int:
        """JSON for whoever wants it, and the exit status. Raises the error of a single name."""
        outcomes = [self._outcomes[name] for name in self._names]
        is_list = len(outcomes) != 1 or getattr(args, "all", False)
        if not is_list and outcomes[0].error is not None:
            raise outcomes[0].error
        if args.json:
            print_json([outcome.describe() for outcome in outcomes] if is_list else outcomes[0].describe())
        return choose_exit_status([outcome.exit_status for outcome in outcomes])
