"""What can the journal tell, by which name, and what does each line mean?

Metrics, `status` and operators' own filters (`LLAMACTL_EVENT`) go by these names, so all who log use this enum, and
the list of docs/journal.md is made from it. A new event is one entry here.
"""

import re
from enum import StrEnum
from typing import Self


class Teller(StrEnum):
    """Whose lines an event is in; `journalctl -u` finds them by the unit."""

    SUPERVISOR = "the supervisor"
    FRONT = "the front"
    CHILD = "instances and measure children"


_SUPERVISOR, _FRONT, _CHILD = Teller


class JournalEvent(StrEnum):
    """A noun with a participle: one thing that happened. The facts are in the line's fields."""

    tellers: tuple[Teller, ...]
    meaning: str

    def __new__(cls, event: str, meaning: str, *tellers: Teller) -> Self:
        member = str.__new__(cls, event)
        member._value_ = event
        member.meaning = meaning
        member.tellers = tellers or (_SUPERVISOR,)
        return member

    @property
    def slug(self) -> str:
        """As the field LLAMACTL_EVENT has it."""
        return re.sub(r"[^a-z0-9]+", "_", self.lower()).strip("_")

    # --- the supervisor, and its models ---

    SUPERVISOR_STARTED = "supervisor started", "It listens, and looks for what runs already."
    SUPERVISOR_NOT_STARTED = "supervisor not started", "It cannot: the reason says why."
    SUPERVISOR_STOPPED = "supervisor stopped", "It has ended; models run on."
    SUPERVISOR_BROKEN = "supervisor broken", "A bug: it ends and is started again, models run on."
    SYSTEMD_CONNECTION_LOST = "systemd connection lost", "It connects again by itself; starts and stops wait."
    INSTANCE_FOUND = "instance found", "A model's unit from before this supervisor."
    INSTANCE_ADOPTED = "instance adopted", "Such an instance has reported, and is used."
    INSTANCES_RECOVERED = (
        "instances recovered",
        "All that ran has reported, or has had its time; from here on models may be stopped.",
    )
    UNIT_IGNORED = "unit ignored", "A unit with a name of ours that does not say which model it is."
    UNIT_STOPPED = "unit stopped", "A unit with a name of ours that somebody else has started, and that is of no use."
    STATE_CORRECTED = (
        "state corrected",
        "What the supervisor knew of a unit was not what systemd says: it goes by systemd. Counted by a metric.",
    )
    INSTALLATION_AWAITED = "installation awaited", "llamactl's own files are being replaced: the start waits for that."
    UNITS_NOT_COMPARED = "units not compared", "systemd did not say what runs; it is asked again."
    FAILED_UNIT_RESET = (
        "failed unit reset",
        "A unit that failed, of a model that is no longer configured, is forgotten.",
    )
    FAILED_UNIT_NOT_RESET = "failed unit not reset", "systemd would not; the unit stays in its lists."
    CONFIGURATION_RELOADED = "configuration reloaded", "What has changed by it stands in the fields."
    CONFIGURATION_PROBLEM = "configuration problem", "Something in the files is wrong; all else is in force."
    SETTING_NOT_IN_FORCE = "setting not in force", "A key whose value cannot be used: its default holds."
    LIMIT_NOT_ENFORCED = "limit not enforced", "A limit that this machine's control groups cannot apply."
    RELOAD_FAILED = "reload failed", "The configuration could not be read again; the one before is in force."
    FILES_NOT_LOOKED_AT = "files not looked at", "Whether a model's files have changed is not known at present."
    MODEL_FILES_REPLACED = "model files replaced", "They are others than those that were measured."
    MODEL_MEASURED = "model measured", "What a model needs is known."
    MEASUREMENT_FAILED = "measurement failed", "The model is loaded without memory checks, once.", _SUPERVISOR, _CHILD
    MEASUREMENT_NOT_LOOKED_UP = "measurement not looked up", "The cache could not be asked: the model is measured."
    MEASUREMENT_CACHE_DROPPED = "measurement cache dropped", "It cannot be read; models are measured again."
    MEASUREMENT_CACHE_NOT_WRITTEN = "measurement cache not written", "What was measured is forgotten with this process."
    MEASUREMENT_EXCEEDED = "measurement exceeded", "An instance took more than was measured; later loads go by that."
    MEASUREMENT_NOT_REACHED = "measurement not reached", "An instance took less than was measured."
    MEMORY_NEED_RAISED = "memory need raised", "A load ran out of memory: it is tried once more with more room."
    HOST_MEMORY_UNKNOWN = "host memory unknown", "The kernel does not say how much there is; `host_margin` waits."
    DEVICE_FOUND = "device found", "A device is there, with its memory."
    DEVICE_CHANGED = "device changed", "A device has another size than before."
    DEVICE_GONE = "device gone", "A device is there no longer; its models are measured again."
    DEVICES_NOT_READ = "devices not read", "What other programs hold now could not be read."
    LOAD_DECIDED = "load decided", "What a load needs on a device, and what there is."
    LOAD_PLANNED = "load planned", "How a load will be carried out: victims, and what is free afterwards."
    LOAD_WAITS = "load waits", "It does not fit at present; the fields say what it waits for."
    LOAD_REFUSED = "load refused", "It cannot be carried out; clients were told why."
    LOAD_CANCELLED = "load cancelled", "Nobody waits for it any longer."
    LOAD_FAILED = "load failed", "The instance ended before it was ready.", _SUPERVISOR, _CHILD
    MODEL_DOES_NOT_FIT = "model does not fit", "Not even alone, as measured; it is tried all the same."
    VICTIM_CHOSEN = "victim chosen", "An idle model is unloaded for another one."
    VICTIM_DRAINED = "victim drained", "A busy model gets no new requests, so that another one is not starved."
    VICTIM_SPARED = "victim spared", "A model that was to be unloaded stays."
    INSTANCE_SPAWNED = "instance spawned", "A model's unit is started."
    INSTANCE_READY = "instance ready", "The model has been loaded, and answers."
    INSTANCE_ASLEEP = "instance asleep", "An idle model has freed its memory; its process stays."
    INSTANCE_WOKEN = "instance woken", "A model that sleeps loads again."
    INSTANCE_DOUBTED = "instance doubted", "A front cannot connect to it: no new request goes there for a moment."
    INSTANCE_UNRESPONSIVE = "instance unresponsive", "It does not answer an order to stop: systemd stops it."
    INSTANCE_CRASHED = "instance crashed", "It ended on its own, and badly."
    WARM_UP_DIED = (
        "warm-up died",
        "By SIGILL or SIGSEGV, as where a processor cannot compute with extra buffer types: it is tried without them.",
    )
    MODEL_UNLOADED = "model unloaded", "Its unit is gone and its memory free; the reason says why."
    MODEL_PINNED = "model pinned", "It is not unloaded for others."
    MODEL_UNPINNED = "model unpinned", "It may be unloaded for others again."
    STOP_FAILED = "stop failed", "systemd did not stop a unit."
    LAST_LOG_LINES_NOT_READ = "last words not read", "Why an instance failed stands in the journal alone."
    REPORT_NOT_HANDLED = (
        "report not handled",
        "A bug, or an attack: its unit is stopped, and is how it failed; all else goes on.",
    )
    REQUEST_NOT_HANDLED = "request not handled", "A bug: the connection that sent it is ended; all else goes on."
    SUSPECTS_NOT_KEPT = (
        "suspects not kept",
        "A report that ends the supervisor would be taken again by the next one: there is no file to remember it by.",
    )
    REPORT_REFUSED = "report refused", "A process that is no unit of ours, or of another model, has tried to report."

    # --- the front ---

    FRONT_READY = "front ready", "It listens.", _FRONT
    FRONT_BROKEN = "front broken", "A bug: it ends and is started again; requests that run may end first.", _FRONT
    FRONT_STOPPED = "front stopped", "It has ended; `cut` answers were not complete.", _FRONT
    FRONT_REPLACED = "front replaced", "A new process has taken over; this one ends what it has begun.", _FRONT
    FRONT_RELOAD_UNDER_WAY = "front reload under way already", "The second of two reloads does nothing.", _FRONT
    FRONT_RELOAD_FAILED = "front reload failed, this process goes on", "The new process did not come up.", _FRONT
    SUCCESSOR_GONE = "front's successor gone", "This process ends at once, so that systemd starts another one.", _FRONT
    SUPERVISOR_CONNECTED = "supervisor connected", "Loads are possible.", _FRONT
    SUPERVISOR_LOST = "supervisor lost", "Loaded models are served on, loads wait.", _FRONT
    SUPERVISOR_REFUSED = (
        "supervisor refused",
        "It did not understand a message: different versions, most likely.",
        _FRONT,
    )
    REQUEST_ANSWERED = "request answered", "One request, with its status, times and sizes.", _FRONT
    REQUEST_BROKEN_OFF = "request broken off", "One request whose answer did not end as it should have.", _FRONT
    REQUEST_FAILED = "request failed", "An instance was lost while it answered.", _FRONT
    CLIENT_CUT = "client cut", "A client took nothing of its answer for `send_timeout`.", _FRONT
    BODY_NOT_KEPT = "body not kept", "There is no space for a large body that waits for its model.", _FRONT

    # --- instances and measure children ---

    MODEL_LOADED = "model loaded", "By its instance, which is ready with that.", _CHILD
    MODEL_FREED = "model freed", "It sleeps now.", _CHILD
    ENGINE_STEP_FAILED = "engine step failed", "The requests in it have failed; the instance goes on.", _CHILD
    INSTANCE_BROKEN = "instance broken", "A bug in an instance: it ends, and can be loaded again.", _CHILD
    ENGINE_BROKEN = "engine broken", "The instance cannot compute any longer, and ends.", _CHILD
    CHAT_TEMPLATE_UNUSABLE = (
        "chat template unusable",
        "Another one is used; the reason says which is wrong how.",
        _CHILD,
    )
    CHAT_TEMPLATE_WITHOUT_TOOLS = (
        "chat template without tools",
        "llama.cpp's chat layer cannot use it, and the reason says why: plain chats go on.",
        _CHILD,
    )
    CONTEXT_SHIFT_UNAVAILABLE = "context shift unavailable", "This model cannot: answers end with its context.", _CHILD
    TOKENS_OF_ANOTHER_VOCABULARY = (
        "token numbers of another vocabulary",
        "A client sends numbers that may be another model's tokens; said once.",
        _CHILD,
    )
    FIELD_IGNORED = "field ignored", "A request has a field that nothing here knows; each is told once.", _CHILD
    DEVICES_LEFT_OUT = "devices left out", "An RPC server cannot be used.", _CHILD
    NVML_NOT_USED = "nvml not used", "Other programs' use of NVIDIA GPUs is not known.", _CHILD
    PROCESSORS_SHARED = "processors shared", "So many models compute at once, with so many threads each.", _CHILD
    SUPERVISOR_NOT_CONNECTED = "supervisor not connected", "It is tried again.", _CHILD
    SUPERVISOR_NOT_UNDERSTOOD = (
        "supervisor not understood",
        "Different versions, most likely; it connects again.",
        _CHILD,
    )
    MESSAGE_REFUSED_BY_SUPERVISOR = "message refused by supervisor", "Different versions, most likely.", _CHILD


def format_table(teller: Teller) -> list[str]:
    """The rows of docs/journal.md for one teller, by name."""
    events = sorted((event for event in JournalEvent if teller in event.tellers), key=lambda event: event.slug)
    return [f"| `{event.slug}` | {event.meaning} |" for event in events]
