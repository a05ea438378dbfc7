"""Which errors exist, and how does each one look to an HTTP client and to a shell?

One table holds, for every code, the HTTP status, the exit status of the command line, the `type` word that
llama-server puts into its error bodies, and OpenAI's `code`. Code that raises names a code; nothing else in the project
maps errors to numbers.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    """Stable names of errors: they appear in protocol messages and journal fields."""

    INVALID_REQUEST = "invalid_request"
    TOO_LARGE = "too_large"
    ENCODED = "encoded"
    UNKNOWN_MODEL = "unknown_model"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    ALREADY_LOADED = "already_loaded"
    NOT_LOADED = "not_loaded"
    INVALID_MODEL = "invalid_model"
    INVALID_CONFIG = "invalid_config"
    DOES_NOT_FIT = "does_not_fit"
    PINNED = "pinned"
    LOAD_FAILED = "load_failed"
    MEASURE_FAILED = "measure_failed"
    CANCELLED = "cancelled"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    INSTANCE_DIED = "instance_died"
    NO_SUPERVISOR = "no_supervisor"
    SHUTTING_DOWN = "shutting_down"
    PROTOCOL = "protocol"
    PERMISSION = "permission"
    CONTEXT_SIZE = "exceed_context_size"
    NOT_SUPPORTED = "not_supported"
    NO_STORAGE = "no_storage"
    INTERNAL = "internal"


RETRY_AFTER_S = 5
"""What a client is told that comes at a bad time: models have to be loaded, or others to be answered."""
RETRY_SOON_S = 1
"""The same, where a process has only to be back or ready."""


@dataclass(frozen=True)
class ErrorKind:
    """What one error code means outside of the process that met it."""

    http_status: int
    exit_status: int
    type: str
    openai_code: str | None = None
    """The `code` by which OpenAI's clients know it, where there is one."""


ERROR_TABLE: dict[ErrorCode, ErrorKind] = {
    ErrorCode.INVALID_REQUEST: ErrorKind(400, 1, "invalid_request_error"),
    ErrorCode.TOO_LARGE: ErrorKind(413, 1, "invalid_request_error"),
    ErrorCode.ENCODED: ErrorKind(415, 1, "invalid_request_error"),
    ErrorCode.UNKNOWN_MODEL: ErrorKind(404, 4, "not_found_error", "model_not_found"),
    ErrorCode.NOT_FOUND: ErrorKind(404, 1, "not_found_error"),
    ErrorCode.METHOD_NOT_ALLOWED: ErrorKind(405, 1, "invalid_request_error"),
    ErrorCode.ALREADY_LOADED: ErrorKind(400, 0, "invalid_request_error"),
    ErrorCode.NOT_LOADED: ErrorKind(400, 3, "invalid_request_error"),
    ErrorCode.INVALID_MODEL: ErrorKind(500, 1, "server_error"),
    ErrorCode.INVALID_CONFIG: ErrorKind(500, 1, "server_error"),
    ErrorCode.DOES_NOT_FIT: ErrorKind(503, 5, "unavailable_error"),
    ErrorCode.PINNED: ErrorKind(409, 5, "unavailable_error"),
    ErrorCode.LOAD_FAILED: ErrorKind(500, 1, "server_error"),
    ErrorCode.MEASURE_FAILED: ErrorKind(500, 1, "server_error"),
    ErrorCode.CANCELLED: ErrorKind(503, 1, "unavailable_error"),
    ErrorCode.QUEUE_FULL: ErrorKind(429, 1, "unavailable_error", "rate_limit_exceeded"),
    ErrorCode.QUEUE_TIMEOUT: ErrorKind(504, 1, "unavailable_error"),
    ErrorCode.INSTANCE_DIED: ErrorKind(502, 1, "server_error"),
    ErrorCode.NO_SUPERVISOR: ErrorKind(503, 6, "unavailable_error"),
    ErrorCode.SHUTTING_DOWN: ErrorKind(503, 6, "unavailable_error"),
    ErrorCode.PROTOCOL: ErrorKind(400, 1, "invalid_request_error"),
    ErrorCode.PERMISSION: ErrorKind(403, 1, "permission_error"),
    ErrorCode.CONTEXT_SIZE: ErrorKind(400, 1, "exceed_context_size_error", "context_length_exceeded"),
    ErrorCode.NOT_SUPPORTED: ErrorKind(501, 1, "not_supported_error"),
    ErrorCode.NO_STORAGE: ErrorKind(507, 1, "unavailable_error"),
    ErrorCode.INTERNAL: ErrorKind(500, 1, "server_error"),
}


class LlamactlError(Exception):
    """An error that a user may read: what, which, why, and a hint where there is one thing to do.

    `details` carries figures for machines (bytes, device names); everything in it is JSON.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        hint: str = "",
        model: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.model = model
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    @property
    def kind(self) -> ErrorKind:
        return ERROR_TABLE[self.code]


_HALF_PAIR_AT_END = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}[^"\\]*"[ \t\r\n\]}]*\Z')


def explain_json_error(data: bytes, error: Exception) -> str:
    """Why `data` is no JSON. The decoder looks for the other half of a surrogate pair beyond the end."""
    if _HALF_PAIR_AT_END.search(data[-16:]) and "truncated" in str(error):
        return r"half a surrogate pair, as in \ud800 alone, is no character"
    return str(error)
