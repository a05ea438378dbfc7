"""Which keys does `llamactl.toml` have, above its `[defaults]`?"""

from llamactl.config.keys import Applies, MachineKey
from llamactl.config.kinds import (
    ACCESS_LOG,
    BOOLEAN,
    DURATION,
    DURATION_OR_NEVER,
    DURATION_OR_NONE,
    HOSTS,
    MARGINS,
    ORIGINS,
    SIZE,
    TEXT,
    make_choice,
    make_integer,
)
from llamactl.settings import HttpControl

LOG_LEVELS = ("debug", "info", "warning", "error")

AT_ONCE, NEXT_LOAD, NEXT_MEASUREMENT = Applies.AT_ONCE, Applies.NEXT_LOAD, Applies.NEXT_MEASUREMENT

GLOBAL_KEYS: tuple[MachineKey, ...] = (
    MachineKey(
        "margin", SIZE, "Kept free on every device; not of main memory, which has `host_margin`.", applies=AT_ONCE
    ),
    MachineKey("margins", MARGINS, "Kept free on single devices, by name; replaces `margin` there.", applies=AT_ONCE),
    MachineKey("host_margin", SIZE, "Kept free of host memory. Unset: host memory is not a limit.", applies=AT_ONCE),
    MachineKey(
        "host_budget", SIZE, "What all models together may hold of host memory. Unset: no limit.", applies=AT_ONCE
    ),
    MachineKey(
        "refresh",
        DURATION_OR_NEVER,
        "What is free on devices is read again before a load when it is known for longer; at once where that is cheap.",
        applies=AT_ONCE,
    ),
    MachineKey("max_loaded", make_integer(0), "Models loaded at one time; `0`: any number.", applies=AT_ONCE),
    MachineKey("strict", BOOLEAN, "Refuse a model that would not fit even alone, instead of trying.", applies=AT_ONCE),
    MachineKey(
        "max_wait",
        DURATION_OR_NEVER,
        "How long a request waits behind busy models before one of them is drained.",
        applies=AT_ONCE,
    ),
    MachineKey(
        "min_resident",
        DURATION_OR_NONE,
        "How long a model that was just loaded stays at least, whoever waits for its room.",
        applies=AT_ONCE,
    ),
    MachineKey("load_stall", DURATION, "A load without any progress for so long has failed.", applies=NEXT_LOAD),
    MachineKey("measure_timeout", DURATION, "A measurement that takes longer has failed.", applies=NEXT_MEASUREMENT),
    MachineKey(
        "stop_timeout", DURATION, "How long a model that stops may take before it is killed.", applies=NEXT_LOAD
    ),
    MachineKey(
        "idle_timeout",
        DURATION_OR_NEVER,
        "Unload models after so long without a request, unless they set their own.",
        applies=AT_ONCE,
    ),
    MachineKey(
        "sleep_after",
        DURATION_OR_NEVER,
        "Put models to sleep after so long without a request, unless they set their own.",
        applies=AT_ONCE,
    ),
    MachineKey("max_body", SIZE, "Largest request body that is taken.", applies=AT_ONCE),
    MachineKey(
        "head_timeout", DURATION_OR_NEVER, "How long a client may take to send a request's head.", applies=AT_ONCE
    ),
    MachineKey(
        "body_timeout", DURATION_OR_NEVER, "How long a client may stop in the middle of a body.", applies=AT_ONCE
    ),
    MachineKey(
        "send_timeout",
        DURATION_OR_NEVER,
        "How long a client may take nothing of an answer that waits for it; then its connection is cut.",
        applies=AT_ONCE,
    ),
    MachineKey(
        "keepalive_timeout", DURATION_OR_NEVER, "How long connections are kept between requests.", applies=AT_ONCE
    ),
    MachineKey(
        "queue_timeout",
        DURATION_OR_NEVER,
        "How long a request waits for its model, whatever the reason; then 504.",
        applies=AT_ONCE,
    ),
    MachineKey(
        "max_queue", make_integer(1), "Requests that may wait for one model; more are refused.", applies=AT_ONCE
    ),
    MachineKey(
        "max_queue_total",
        make_integer(0),
        "Requests that may wait for all models together; more are refused. `0`: any number.",
        applies=AT_ONCE,
    ),
    MachineKey("log_level", make_choice(LOG_LEVELS), "The least important lines that are logged.", applies=NEXT_LOAD),
    MachineKey(
        "autoload",
        BOOLEAN,
        "Load the model that a request names. Without it only requests with `?autoload=true` do, and commands.",
        applies=AT_ONCE,
    ),
    MachineKey(
        "default_model", TEXT, "Serves requests that name no model, or one that does not exist.", applies=AT_ONCE
    ),
    MachineKey(
        "allowed_hosts",
        HOSTS,
        'Names in the Host header that are taken on TCP, besides localhost and addresses; `"*.NAME"`: all below it.',
        applies=AT_ONCE,
    ),
    MachineKey(
        "cors_origins",
        ORIGINS,
        'Origins whose pages may use the endpoint from a browser; `"*"`: all, `"localhost"`: those of this machine.',
        applies=AT_ONCE,
    ),
    MachineKey(
        "http_control",
        make_choice(tuple(HttpControl)),
        'Who may load and unload models by HTTP: `"open"`: all who reach the front, `"admin"`: members of '
        "`llamactl-admin`, on the Unix socket.",
        applies=AT_ONCE,
    ),
    MachineKey("access_log", ACCESS_LOG, "The level at which each request is logged.", applies=AT_ONCE),
)
