"""What does a grammar take next? One of llama.cpp's grammars on its way through an answer, and whether llama.cpp can
use a text as a grammar at all.

llama.cpp ends the process when a grammar accepts what it forbids, so each token is tried before.
"""

import ctypes
import re
import weakref
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from llamactl.instance.grammar.ambiguity import AmbiguityError, check_ambiguity
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.log import capture_stderr
from llamactl.instance.llama.model import Vocabulary

_UNREADABLE = "llama.cpp cannot read it, and says why in the model's log"
_GRAMMAR_REASON = re.compile(
    r"error parsing grammar: (.+)|unsupported grammar, .+|invalid grammar: .+|grammar does not contain .+"
)
_MAX_REASON_CHARS = 200
_NEVER = float("-inf")
MAX_GRAMMAR_CHARS, MAX_GRAMMAR_RULES, MAX_GRAMMAR_DEPTH = 1 << 20, 5000, 200


class GrammarError(ValueError):
    """llama.cpp cannot use a grammar."""


class Grammar:
    """Of one answer. Owns a sampler: `close` it."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._one = llama.llama_token_data()
        self._single = llama.llama_token_data_array(ctypes.pointer(self._one), 1, -1, False)

    def allows(self, token: int) -> bool:
        """Whether it takes this token next."""
        self._one.id, self._one.logit, self._one.p = token, 0.0, 0.0
        self._single.size, self._single.selected, self._single.sorted = 1, -1, False
        llama.llama_sampler_apply(self.sampler, ctypes.byref(self._single))
        return float(self._one.logit) != _NEVER

    def accept(self, token: int) -> None:
        """Only what it allows."""
        llama.llama_sampler_accept(self.sampler, token)

    def read(self, tokens: Iterable[int]) -> bool:
        """Tries and accepts one after the other. False: it forbids one, and has read those before it."""
        for token in tokens:
            if not self.allows(token):
                return False
            self.accept(token)
        return True

    def close(self) -> None:
        if self.sampler:
            llama.llama_sampler_free(self.sampler)
            self.sampler = None


class Prototype:
    """A sampler that is only cloned, and freed with the last reference to it."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        # At the end of the process there is nothing left to free it with, and no need.
        weakref.finalize(self, llama.llama_sampler_free, sampler).atexit = False

    def clone(self) -> Any:
        """Clone the sampler of llama.cpp, which the caller frees."""
        return llama.llama_sampler_clone(self._sampler)


def create_grammar(vocabulary: Vocabulary, text: str) -> Grammar:
    """Raises GrammarError; llama.cpp prints the reason."""
    sampler = llama.llama_sampler_init_grammar(vocabulary.pointer, text.encode(), b"root")
    if not sampler:
        raise GrammarError(_UNREADABLE)
    return Grammar(sampler)


@lru_cache(maxsize=8)
def prepare_grammar(vocabulary: Vocabulary, text: str) -> Prototype:
    """One that many answers have: to read that of thirty functions takes a while, to copy it does not. Raises
    GrammarError.
    """
    grammar = create_grammar(vocabulary, text)
    return Prototype(grammar.sampler)


def _find_reason(vocabulary: Vocabulary, text: str) -> str:
    """Why llama.cpp cannot read a grammar, in its own words."""
    printed = capture_stderr(lambda: llama.llama_sampler_init_grammar(vocabulary.pointer, text.encode(), b"root"))
    reason = _GRAMMAR_REASON.search(printed)
    return f"llama.cpp says: {(reason[1] or reason[0])[:_MAX_REASON_CHARS]}" if reason else _UNREADABLE


def check_grammar(vocabulary: Vocabulary, text: str) -> None:
    """Raises GrammarError, also for grammars on which llama.cpp's recursive parser would use up the stack, or that have
    more readings than it can follow.
    """
    if len(text) > MAX_GRAMMAR_CHARS:
        raise GrammarError(f"it has {len(text)} characters, at most {MAX_GRAMMAR_CHARS} are taken")
    if "\0" in text:
        raise GrammarError("it holds NUL")
    n_rules = text.count("::=")
    if n_rules > MAX_GRAMMAR_RULES:
        raise GrammarError(f"it has {n_rules} rules, at most {MAX_GRAMMAR_RULES} are taken")
    depth = 0
    for bracket in re.findall(r"[()]", text):
        depth += 1 if bracket == "(" else -1
        if depth > MAX_GRAMMAR_DEPTH:
            raise GrammarError(f"its brackets are nested more than {MAX_GRAMMAR_DEPTH} deep")
    try:
        check_ambiguity(text)
    except AmbiguityError as error:
        raise GrammarError(str(error)) from None
    try:
        create_grammar(vocabulary, text).close()
    except GrammarError:
        raise GrammarError(_find_reason(vocabulary, text)) from None


def spell(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Tokens whose texts together are exactly this, for a grammar to read; fewer where the vocabulary lacks a byte.

    Tokenizers may add a space, and cannot read what begins or ends within a character: then it is byte by byte.
    """
    with suppress(UnicodeDecodeError):
        tokens = vocabulary.tokenize(text.decode(), add_special=False, parse_special=True)
        if b"".join(vocabulary.piece(token, special=True) for token in tokens) == text:
            return tokens
    return [vocabulary.byte_tokens[byte] for byte in text if byte in vocabulary.byte_tokens]
