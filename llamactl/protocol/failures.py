"""How does an error travel over `control.sock`? The two directions, one behind the other."""

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.protocol.control_socket import Failure


def format_failure(request_id: int, error: LlamactlError) -> Failure:
    """The message that tells of an error."""
    return Failure(
        id=request_id,
        code=error.code,
        message=error.message,
        hint=error.hint,
        model=error.model,
        details=error.details,
    )


def parse_failure(failure: Failure) -> LlamactlError:
    """The error that a message tells of; a code of a newer supervisor counts as internal."""
    code = ErrorCode(failure.code) if failure.code in tuple(ErrorCode) else ErrorCode.INTERNAL
    return LlamactlError(code, failure.message, hint=failure.hint, model=failure.model, details=failure.details)
