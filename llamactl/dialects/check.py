"""Would any model take this body, in whichever words it comes?"""

from llamactl import bodies
from llamactl.bodies import parse_body, refuse
from llamactl.dialects import responses
from llamactl.dialects.messages import CountBody, MessagesBody
from llamactl.dialects.messages_chat import convert_messages
from llamactl.dialects.responses import ResponsesBody
from llamactl.dialects.responses_chat import convert_responses


def check_body(word: str, data: bytes) -> None:
    """Raises LlamactlError for a body that no model takes on this route, by its word of `endpoints`."""
    if word == "transcription":
        if not data.lstrip().startswith(b"--"):
            raise refuse("cannot read the request body: it must be a form (multipart/form-data)")
    elif word in ("messages", "count_messages"):
        convert_messages(parse_body(data, MessagesBody if word == "messages" else CountBody))
    elif word == "responses":
        convert_responses(parse_body(data, ResponsesBody))
    elif word == "count_responses":
        convert_responses(parse_body(data, responses.CountBody))
    else:
        bodies.check_body(word, data)
