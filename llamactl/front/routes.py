"""Which requests does the front answer itself, and which does it pass on?

The routes of llama-server's router are answered here, from what the supervisor says; all others that name a model are
passed on as they are. For the routes that instances have (`endpoints`) the model is loaded; for any other one it is
not, or a mistake in a path would drive out models to be told of it. A model that runs is asked whatever the path, so
that an endpoint that instances gain tomorrow works at once. GET requests that only look at a model (PASSIVE) never
load it: a scrape of metrics must not start a model.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from llamactl import __version__, endpoints
from llamactl.endpoints import format_http_error
from llamactl.errors import RETRY_SOON_S, ErrorCode, LlamactlError
from llamactl.front.control import Reply
from llamactl.front.control_rights import require_admin, require_control
from llamactl.front.exchange import Exchange
from llamactl.front.http.body import HELD_BYTES, BodyStream
from llamactl.front.http.guard import Guard
from llamactl.front.http.members import NO_MEMBERS, Members
from llamactl.front.http.ports import Answering
from llamactl.front.http.wire import RequestHead
from llamactl.front.listing import format_model, format_model_list
from llamactl.front.naming import (
    check_length,
    decode_path,
    find_autoload,
    find_model,
    find_query_value,
    is_set,
    read_members,
    require_model,
)
from llamactl.front.scrape import Scrape, ScrapeHost
from llamactl.front.subscribers import EventStream, Subscribers
from llamactl.protocol.control_socket import (
    ClientMessage,
    ListRequest,
    LoadRequest,
    MachineStatus,
    ModelList,
    ReloadRequest,
    StatusRequest,
    SubscribeRequest,
    UnloadRequest,
)
from llamactl.protocol.descriptions import ModelStatus
from llamactl.protocol.values import State

PASSIVE = frozenset(path.encode() for path in endpoints.INTROSPECTION if "models" not in path)
_POSTS = frozenset(path.encode() for path in (*endpoints.GENERATIONS, *endpoints.TEXTS))
_MODEL_PREFIX = b"/v1/models/"
_READ = (b"GET", b"HEAD")
_ALLOW_READ = "GET, HEAD, OPTIONS"
_ALLOW_POST = "POST, OPTIONS"


class RouteHost(ScrapeHost, Protocol):
    """The process, for those who answer requests."""

    @property
    def guard(self) -> Guard: ...
    @property
    def subscribers(self) -> Subscribers: ...
    @property
    def unknown_names(self) -> set[str]: ...


@dataclass(slots=True)  # not frozen: that costs a microsecond for each request
class _Request:
    front: RouteHost
    client: Answering
    head: RequestHead
    body: bytes
    stream: BodyStream | None

    def read_members(self) -> Members:
        return read_members(self.head, self.body, self.stream)

    def pass_on(self, *, loads: bool, passive: bool = False) -> None:
        """To the model that it names. Raises LlamactlError where it names none."""
        members = self.read_members()
        name = require_model(self.head, members, self.front.settings.default_model)
        self.pass_on_to(name, members, loads=loads, passive=passive)

    def pass_on_to(self, name: str, members: Members, *, loads: bool, passive: bool = False) -> None:
        _pass_on(self.front, self.client, self.head, self.body, self.stream, members, name, loads, passive)


def dispatch(
    front: RouteHost, client: Answering, head: RequestHead, body: bytes, stream: BodyStream | None = None
) -> None:
    """Answer one request, begin to, or pass it on. `stream`: a large body that may still be on its way, instead of
    `body`. Raises LlamactlError for the client.
    """
    default = front.settings.default_model
    if head.passed_by is front.guard:  # as the last one
        members = read_members(head, body, stream)
        _pass_on(front, client, head, body, stream, members, require_model(head, members, default), loads=True)
        return
    request = _Request(front, client, head, body, stream)
    path = head.path
    if client.peer and not front.guard.accepts_host(head.find(b"host")):
        _refuse_host(request)
    if client.peer and head.upgrade and not front.guard.accepts_upgrade(head):
        _refuse_origin(request)
    if head.has_body and (head.find(b"content-encoding") or b"identity").lower() != b"identity":
        _refuse_encoding(request)
        return
    if front.guard.is_preflight(head):
        client.answer(head, 200, None, front.guard.format_preflight(head))
        return
    route = ROUTES.get(path)
    if route is not None and not (route.gives_way and find_query_value(head.query, "model")):
        _dispatch_own(request, route)
    elif path.startswith(_MODEL_PREFIX) and head.method in _READ:
        name = decode_path(path[len(_MODEL_PREFIX) :])
        check_length(name)
        _ask(request, lambda number: ListRequest(id=number, model=name), _answer_model)
    elif head.method in (*_READ, b"DELETE") and (keeper := endpoints.find_keeper(path)) is not None:
        request.pass_on_to(keeper, request.read_members(), loads=False, passive=True)
    elif head.method == b"OPTIONS":
        is_read = path in PASSIVE or path.startswith(_MODEL_PREFIX)
        allow = _ALLOW_POST if path in _POSTS else _ALLOW_READ if is_read else "GET, HEAD, POST, OPTIONS"
        client.answer(head, 204, None, (("Allow", allow),))
    elif path in _POSTS:
        if head.method != b"POST":
            _refuse_method(request, _ALLOW_POST)
            return
        if not head.upgrade:
            head.passed_by = front.guard
        request.pass_on(loads=True)
    elif path.startswith(_MODEL_PREFIX):
        _refuse_method(request, _ALLOW_READ)
    elif path in PASSIVE:
        if head.method not in _READ:
            _refuse_method(request, _ALLOW_READ)
            return
        request.pass_on(loads=False, passive=True)
    else:
        _pass_on_other(request)


def _refuse_host(request: _Request) -> NoReturn:
    host = (request.head.find(b"host") or b"").decode("latin-1")
    raise LlamactlError(
        ErrorCode.PERMISSION,
        f"cannot answer to the name '{host[:255]}': on TCP only localhost, addresses and allowed names are taken",
        hint="set allowed_hosts in llamactl.toml",
    )


def _refuse_origin(request: _Request) -> NoReturn:
    origin = (request.head.find(b"origin") or b"").decode("latin-1")
    raise LlamactlError(
        ErrorCode.PERMISSION,
        f"cannot change protocols for a page of '{origin[:255]}'",
        hint="set cors_origins in llamactl.toml",
    )


def _refuse_encoding(request: _Request) -> None:
    """RFC 9110 15.5.16: with what is taken instead."""
    encoding = (request.head.find(b"content-encoding") or b"").decode("latin-1")
    error = LlamactlError(
        ErrorCode.ENCODED,
        f"cannot read body: its Content-Encoding is '{encoding[:40]}'",
        hint="send it as it is, not compressed",
    )
    _refuse(request, error, ("Accept-Encoding", "identity"))


def _dispatch_own(request: _Request, route: "_Route") -> None:
    method = request.head.method
    if method == b"OPTIONS":
        request.client.answer(request.head, 204, None, (("Allow", route.allow),))
    elif method not in route.methods:
        _refuse_method(request, route.allow)
    elif request.stream is not None:
        raise LlamactlError(
            ErrorCode.TOO_LARGE,
            f"cannot take body: '{request.head.path.decode()}' takes at most {HELD_BYTES} bytes",
        )
    else:
        route.answer(request)


def _refuse_method(request: _Request, allow: str) -> None:
    error = LlamactlError(
        ErrorCode.METHOD_NOT_ALLOWED,
        f"cannot {request.head.method.decode()} '{request.head.path.decode()}': it takes {allow}",
    )
    _refuse(request, error, ("Allow", allow))


def _refuse(request: _Request, error: LlamactlError, field: tuple[str, str]) -> None:
    """Answer with an error that says in a header what would be taken."""
    if request.stream is not None:
        request.stream.close()
    request.client.answer(request.head, error.kind.http_status, format_http_error(error, request.head.path), (field,))


def _pass_on_other(request: _Request) -> None:
    """A route that neither we nor instances have, as far as we know: a model that runs may say otherwise."""
    name, members = None, NO_MEMBERS
    with contextlib.suppress(LlamactlError):  # what the body is like does not matter then
        members = request.read_members()
        name = find_model(request.head, members)
    if not name and request.head.method not in _READ:
        name = request.front.settings.default_model
    if not name:
        raise endpoints.refuse_route(decode_path(request.head.path))
    request.pass_on_to(name, members, loads=False)


def _pass_on(
    front: RouteHost,
    client: Answering,
    head: RequestHead,
    body: bytes,
    stream: BodyStream | None,
    members: Members,
    name: str,
    loads: bool,
    passive: bool = False,
) -> None:
    if members.keep_alive is not None:
        members.read_keep_alive_s()  # may raise
    if name in front.unknown_names:
        name = front.settings.default_model
    autoload = loads and front.settings.autoload
    if loads and head.query:
        asked = find_autoload(head.query)
        autoload = autoload if asked is None else asked
    exchange = Exchange(front, client, head, body, members, name, autoload, passive, stream)
    client.begin(exchange)
    exchange.start()


# --- what the supervisor answers ----------------------------------------------------------------


class _Inquiry:
    """A request that is answered with what the supervisor says."""

    __slots__ = ("_number", "_request", "_then")

    def __init__(
        self,
        request: _Request,
        make: Callable[[int], ClientMessage],
        then: Callable[[_Request, Reply], None],
    ) -> None:
        self._request = request
        self._then = then
        request.client.begin(self)
        self._number = request.front.control.ask(make, self._on_reply)

    def _on_reply(self, reply: Reply | LlamactlError) -> None:
        if isinstance(reply, LlamactlError):
            self._request.client.answer_error(reply, self._request.head)
        else:
            try:
                self._then(self._request, reply)
            except LlamactlError as error:
                self._request.client.answer_error(error, self._request.head)

    def cancel(self) -> None:
        self._request.front.control.forget(self._number)

    def pause(self) -> None:
        """Its answer is one small write."""

    def resume(self) -> None:
        """See pause."""


def _ask(request: _Request, make: Callable[[int], ClientMessage], then: Callable[[_Request, Reply], None]) -> None:
    _Inquiry(request, make, then)


def _answer_root(request: _Request) -> None:
    """Clients knock here to see whether somebody is at home (Claude Code, by HEAD)."""
    request.client.answer(request.head, 200, {"llamactl": __version__})


def _answer_health(request: _Request) -> None:
    """The front can do its work while it reaches the supervisor, and for loaded models without it."""
    front = request.front
    if front.control.connected or front.leases.leases():
        request.client.answer(request.head, 200, {"status": "ok"})
        return
    error = LlamactlError(
        ErrorCode.NO_SUPERVISOR,
        "cannot serve any model: the supervisor does not answer",
        hint="`systemctl status llamactl` says more",
    )
    body = {**format_http_error(error), "status": "error", "reasons": ["no_supervisor"]}
    request.client.answer(request.head, 503, body, (("Retry-After", str(RETRY_SOON_S)),))


def _answer_models(request: _Request) -> None:
    if is_set(request.head.query, "reload"):
        require_admin(request.client, "read the configuration again", "`llamactl reload`")
        _ask(request, lambda number: ReloadRequest(id=number), lambda request, _: _list_models(request))
    else:
        _list_models(request)


def _list_models(request: _Request) -> None:
    _ask(request, lambda number: ListRequest(id=number), _answer_model_list)


def _answer_model_list(request: _Request, reply: Reply) -> None:
    assert isinstance(reply, ModelList)
    request.client.answer(request.head, 200, format_model_list(reply))


def _answer_model(request: _Request, reply: Reply) -> None:
    name = decode_path(request.head.path[len(_MODEL_PREFIX) :])
    request.client.answer(request.head, 200, format_model(_require_one(reply, name)))


def _require_one(reply: Reply, name: str) -> ModelStatus:
    assert isinstance(reply, ModelList)
    if not reply.models:
        raise LlamactlError(
            ErrorCode.UNKNOWN_MODEL, f"cannot find model '{name}'", hint="GET /v1/models lists the names", model=name
        )
    return reply.models[0]


def _answer_load(request: _Request) -> None:
    require_control(request.client, request.front.settings, "load a model", "`llamactl load`")
    name = require_model(request.head, request.read_members())
    check_length(name)

    def load_unless_running(request: _Request, reply: Reply) -> None:
        model = _require_one(reply, name)
        if model.state in (State.LOADING, State.READY, State.SLEEPING):
            raise LlamactlError(
                ErrorCode.ALREADY_LOADED,
                f"cannot load '{model.name}': model is already running, it is {model.state}",
                model=model.name,
            )
        _ask(request, lambda number: LoadRequest(id=number, model=name, wait=False), _answer_success)

    _ask(request, lambda number: ListRequest(id=number, model=name), load_unless_running)


def _answer_unload(request: _Request) -> None:
    require_control(request.client, request.front.settings, "unload a model", "`llamactl unload`")
    name = require_model(request.head, request.read_members())
    check_length(name)
    _ask(request, lambda number: UnloadRequest(id=number, model=name, wait=False), _answer_success)


def _answer_success(request: _Request, reply: Reply) -> None:
    request.client.answer(request.head, 200, {"success": True})


def _answer_metrics(request: _Request) -> None:
    Scrape(request.front, request.client, request.head, is_set(request.head.query, "instances")).start()


def _answer_events(request: _Request) -> None:
    stream = EventStream(request.front.subscribers, request.client, request.head)

    def begin(request: _Request, reply: Reply) -> None:
        assert isinstance(reply, ModelList)
        request.front.subscribers.on_models(reply)
        stream.start()

    if request.front.subscribers.log.known is None:
        _ask(request, lambda number: SubscribeRequest(id=number), begin)
    else:
        stream.start()


def _answer_props(request: _Request) -> None:
    _ask(request, lambda number: StatusRequest(id=number), _answer_router_props)


def _answer_router_props(request: _Request, reply: Reply) -> None:
    assert isinstance(reply, MachineStatus)
    props = {
        "role": "router",
        "max_instances": reply.max_loaded,
        "models_autoload": request.front.settings.autoload,
        "model_alias": "llamactl",
        "model_path": "none",
        # Of no model: llama-server's own page looks for them.
        "default_generation_settings": {"params": {}, "n_ctx": 0},
        "build_info": reply.build or "b0",
        "llamactl": __version__,
    }
    request.client.answer(request.head, 200, props)


@dataclass(frozen=True)
class _Route:
    answer: Callable[[_Request], None]
    methods: tuple[bytes, ...]
    gives_way: bool = False
    """To the instance, where the query names a model."""

    @property
    def allow(self) -> str:
        return ", ".join([method.decode() for method in self.methods] + ["OPTIONS"])


ROUTES = {
    b"/": _Route(_answer_root, _READ),
    b"/health": _Route(_answer_health, _READ, gives_way=True),
    b"/v1/health": _Route(_answer_health, _READ, gives_way=True),
    b"/models": _Route(_answer_models, _READ),
    b"/v1/models": _Route(_answer_models, _READ),
    b"/models/sse": _Route(_answer_events, _READ),
    b"/models/load": _Route(_answer_load, (b"POST",)),
    b"/models/unload": _Route(_answer_unload, (b"POST",)),
    b"/props": _Route(_answer_props, _READ, gives_way=True),
    b"/metrics": _Route(_answer_metrics, _READ, gives_way=True),
}
