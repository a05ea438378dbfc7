"""What does a connection ask of whoever looks through a large body while it comes?"""

from typing import Protocol


class Scanner(Protocol):
    """Is fed the pieces of one body, in order."""

    @property
    def done(self) -> bool:
        """Nothing that follows can matter."""

    @property
    def is_object(self) -> bool:
        """False: the body is not what it should be."""

    @property
    def stream(self) -> bool:
        """The body asks for an event stream."""

    @property
    def keep_alive_s(self) -> float | None: ...

    def feed(self, data: bytes) -> None:
        """Go on."""

    def find_model(self) -> str | None:
        """Whom the body is for, once that is known. Raises LlamactlError when it cannot be read."""
