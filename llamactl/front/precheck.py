"""Is a request wrong whatever its model would say to it? Then no model is loaded for it, and none is unloaded.

Only asked where the model would have to be loaded first: what a running instance is sent it checks itself. Its own
types are used here (`bodies`, `dialects`), so both say the same of the same body. What depends on the model (its
context, its kind, its template) only the model knows. A large body is not looked at: it is never in memory as a whole.
"""

from llamactl import endpoints
from llamactl.dialects.check import check_body
from llamactl.errors import LlamactlError

_WORDS = {path.encode(): word for path, word in {**endpoints.GENERATIONS, **endpoints.TEXTS}.items()}


def find_mistake(path: bytes, body: bytes) -> LlamactlError | None:
    """What an instance would refuse this body with on this route, as far as that can be known without its model."""
    word = _WORDS.get(path)
    if word is None:
        return None
    try:
        check_body(word, body)
    except LlamactlError as error:
        return error
    return None
