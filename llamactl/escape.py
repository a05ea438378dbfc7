"""How does a text that anybody may have written look to a person?

File names, metadata of models and what other programs say can hold anything: sequences that clear a terminal, set its
title or turn the direction of writing, newlines that forge a line. What is not printable is shown as Python writes it
in a string (`\\x1b`, `\\u202e`, `\\n`), so that nothing is hidden and nothing acts. Bytes of a file's name that are no
Unicode show as `\\xff`.
"""

import re

_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SURROGATE_ESCAPES = range(0xDC80, 0xDD00)
_LINE = re.compile(r"[^\n]+")


def escape_text(text: str) -> str:
    """One line, whatever the text holds."""
    return text if text.isprintable() else "".join(map(_escape_character, text))


def escape_lines(text: str) -> str:
    """The same for a text of several lines: newlines stay."""
    return text if text.isprintable() else _LINE.sub(lambda match: escape_text(match[0]), text)


def escape_json(text: str) -> str:
    """A JSON text of the same value, with everything escaped that is not printable. Newlines stand between its tokens
    and stay.
    """
    return (
        text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else _escape_in_json(c) for c in text)
    )


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if character in _CONTROLS:
        return _CONTROLS[character]
    if code in _SURROGATE_ESCAPES:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_in_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))
