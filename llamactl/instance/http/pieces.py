"""What is a token called in a list of probabilities, and where does it stand in the text?

By its text, and where its text begins, as long as it has one: many tokens are parts of characters, of which several
make one. Evaluation harnesses compare the names and find the beginning of an answer by the places.
"""

import codecs
import re

_CONTINUES = re.compile(rb"[\x80-\xbf]")
"""A piece that goes on with a character of UTF-8."""


def name_piece(piece: bytes) -> str:
    """A token's text; where it is part of a character, its bytes in OpenAI's notation (`bytes:\\xe6\\xbc`), or all such
    tokens would have one name.
    """
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(
            chr(byte) if 0x20 <= byte < 0x7F and byte != ord("\\") else f"\\x{byte:02x}" for byte in piece
        )


class TextPlaces:
    """Where in a choice's text do its tokens begin? In characters; a token that begins within a character begins with
    it.

    The echo may lack what stands before its own tokens: a BOS that the tokenizer has added, the space that some
    vocabularies put before each first word.
    """

    def __init__(self, echo: str) -> None:
        self._unmet = echo
        """The echo, until a token of it has come."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = 0

    def place(self, piece: bytes) -> int:
        """Of the next token."""
        offset = self._n_chars
        if self._decoder.getstate()[0] and not _CONTINUES.match(piece):
            offset += 1  # the character before stays without its end, and is shown as one
        text = self._decoder.decode(piece)
        if self._unmet and not self._unmet.startswith(text):
            if not text.startswith(" ") or not self._unmet.startswith(text[1:]):
                return offset
            text = text[1:]
        self._unmet = ""
        self._n_chars += len(text)
        return offset
