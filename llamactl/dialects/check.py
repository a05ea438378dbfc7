"""Would any model take this body, in whichever words it comes?"""

from llamactl import bodies
from llamactl.bodies import parse_body
from llamactl.dialects.messages import CountBody, MessagesBody
from llamactl.dialects.messages_chat import convert_messages


def check_body(word: str, data: bytes) -> None:
    """Raises LlamactlError for a body that no model takes on this route, by its word of `endpoints`."""
    if word in ("messages", "count_messages"):
        convert_messages(parse_body(data, MessagesBody if word == "messages" else CountBody))
    else:
        bodies.check_body(word, data)
