"""Are grammars that would hold up llama.cpp told from ordinary ones, before it sees them? And who waits for a check?"""

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.engine.background import BackgroundWork
from llamactl.instance.grammar.ambiguity import AmbiguityError, check_ambiguity
from llamactl.instance.grammar.gbnf import SchemaError
from llamactl.instance.grammar.schema import format_grammar
from llamactl.instance.http.grammar_check import GrammarChecker
from tests.unit.instance.test_schema import JSON

BOMBS = {
    "doubled": "root ::= x0\n"
    + "\n".join(f"x{n} ::= x{n + 1} x{n + 1} | x{n + 1}" for n in range(12))
    + '\nx12 ::= "a" | ""\n',
    "letters": "root ::= " + "[a-z]?" * 600,
    "long": "root ::= " + '"a"?' * 20_000,
}
MORE_BOMBS = {
    "counted": "root ::= " + "[a-z]{0,99999999999} " * 60,
    "commented": "root ::= (" + "[a-z]{0, # none\n 1} " * 60 + ")",
    "escaped": "root ::= " + r'"\x61"? [\x61] ? ' * 60,
    "groups": "root ::= " + '("ab" "c"?)? ' * 60,
    "named": "root ::= " + "x? " * 60 + '\nx ::= "ab"',
    "nullable": "root ::= " + "x " * 60 + '\nx ::= [a-z] | ""',
    "inside": 'root ::= "x" ("y" (' + ".? " * 60 + '"z"))',
    "branches": "root ::= x0\n" + "\n".join(f"x{n} ::= x{n + 1} | x{n + 1} [a-z]" for n in range(40)) + '\nx40 ::= "a"',
    "loops": "root ::= " + "(" * 12 + '"a"' + "*)" * 12,
    "sets": "root ::= " + " ".join(f"[\\x{low:02x}-\\x{high:02x}]" for low in range(96) for high in range(low, 96)),
    "twins": "root ::= (" + " | ".join(['"a"'] * 50) + ")*",
}
ORDINARY = {
    "json": r"""root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
""",
    "list": 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"\n',
    "arithmetic": """root ::= (sum "=" ws product "\\n")+  # lines
sum ::= product ([-+*/] product)*
product ::= word | digits | "(" ws sum ")" ws
word ::= [a-z] [a-z0-9_]* ws
digits ::= [0-9]+ ws
ws ::= [ \\t\\n]*
""",
    "chess": """root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
""",
    "words": "root ::= (" + " | ".join(f'"word {n}"' for n in range(3000)) + ') (", " [a-z]+)*',
    "options": 'root ::= "{" ' + " ".join(f'("\\"key{n}\\":" [0-9]+ ",")?' for n in range(60)) + ' "}"',
    "flags": "root ::= " + " ".join(f'"{letter}"?' for letter in "abcdefghijklmnopqrstuvwxyz"),
    "long text": "root ::= [a-z]{0,1000} .{0,99} " + '"a" ' * 50_000,
    "chain": "\n".join(f"r{n} ::= r{n + 1}" for n in range(4000)) + '\nr4000 ::= "a"\nroot ::= r0',
}
SCHEMAS: dict[str, Any] = {
    "anything": {},
    "object": {"type": "object"},
    "options": {"properties": {f"key{n}": {"type": ["number", "string"]} for n in range(100)}, "type": "object"},
    "names": {"enum": [f"name {n}" for n in range(5000)]},
    "text": {"type": "string", "minLength": 3000, "maxLength": 90_000},
    "rows": {"type": "array", "items": {"type": "array", "maxItems": 900}, "maxItems": 5000},
    "pattern": {"type": "string", "pattern": "^(foo|bar)?[0-9]{1,3}(\\.[0-9]{1,3}){0,3}( [A-Za-z ]*)?$"},
    "number": {"type": "number", "minimum": -123456, "maximum": 98765.4321},
}


@pytest.mark.parametrize("text", [*BOMBS.values(), *MORE_BOMBS.values()], ids=[*BOMBS, *MORE_BOMBS])
def test_grammar_with_too_many_readings_is_refused_at_once(text: str) -> None:
    begun_s = time.process_time()
    with pytest.raises(AmbiguityError, match="at most"):
        check_ambiguity(text)
    assert time.process_time() - begun_s < 3


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_grammar_passes(text: str) -> None:
    check_ambiguity(text)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_grammar_of_a_schema_passes(schema: Any) -> None:
    check_ambiguity(format_grammar(schema))


@settings(max_examples=200, deadline=None)
@given(schema=JSON)
def test_grammar_of_any_schema_passes(schema: Any) -> None:
    with contextlib.suppress(SchemaError):
        check_ambiguity(format_grammar(schema))


@pytest.mark.parametrize(
    "text", ["", "root", "::=", "root ::= ) (((", 'root ::= "a', "a ::= a a?", "(?*{|", "a{,}{# \n}{1 1}", "*", "[]{1}"]
)
def test_broken_grammar_is_left_to_llama_cpp(text: str) -> None:
    check_ambiguity(text)


def test_check_that_hangs_holds_up_the_next_one_only_so_long_and_not_the_pool() -> None:
    release, begun = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        release.wait(30)

    def refuse() -> None:
        raise ValueError("no grammar")

    async def run() -> None:
        background = BackgroundWork()
        checker = GrammarChecker(background)
        first = asyncio.ensure_future(checker.run(hang))
        await asyncio.to_thread(begun.wait, 30)
        with pytest.raises(LlamactlError) as refusal:
            await checker.run(lambda: None, patience_s=0.05)
        assert refusal.value.code is ErrorCode.QUEUE_TIMEOUT
        first.cancel()  # its client has left; the check itself goes on
        with pytest.raises(asyncio.CancelledError):
            await first
        settling = asyncio.ensure_future(background.settle())
        assert await asyncio.to_thread(lambda: settling.done()) is False
        release.set()
        await asyncio.wait_for(settling, 30)
        with pytest.raises(ValueError, match="no grammar"):
            await checker.run(refuse)

    asyncio.run(run())


def test_turn_is_the_next_ones_when_the_work_is_done_and_not_when_its_client_leaves() -> None:
    release, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        release.wait(30)

    async def run() -> None:
        background, turn = BackgroundWork(), asyncio.Lock()
        first = asyncio.ensure_future(background.run(work, turn))
        await asyncio.to_thread(begun.wait, 30)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert turn.locked()
        release.set()
        assert await asyncio.wait_for(background.run(lambda: 7, turn), 30) == 7

    asyncio.run(run())
