"""Which conversations are rendered to compare prompts? Bodies of POST /apply-template, in every form that clients send:
what is left out, null, in parts, begun, called and answered.
"""

from typing import Any

Body = dict[str, Any]


def make_tool(name: str, description: str | None, properties: Body | None, *required: str) -> Body:
    function: Body = {"name": name}
    if description is not None:
        function["description"] = description
    if properties is not None:
        function["parameters"] = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": function}


def call(content: Any = "", *calls: tuple[str, str, Any], **more: Any) -> Body:
    """An answer that calls (id, name, arguments)."""
    made = [{"type": "function", "id": i, "function": {"name": name, "arguments": text}} for i, name, text in calls]
    return {"role": "assistant", "content": content, "tool_calls": made, **more}


def say(role: str, content: Any, **more: Any) -> Body:
    return {"role": role, "content": content, **more}


def parts(*texts: str) -> list[Body]:
    return [{"type": "text", "text": text} for text in texts]


FIRST, SECOND = "abcdefgh1", "abcdefgh2"
LOOK = make_tool("look", "Looks.", {"at": {"type": "string", "description": "What"}, "n": {"type": "integer"}}, "at")
WAIT = make_tool("wait_for", "Waits a while.", {"s": {"type": "number"}})
WORDS = make_tool(
    "look",
    "Größe 🙂 <x> & 'y'",
    {
        "größe": {"type": "string", "enum": ["é", '"q"']},
        "f": {"type": "number", "default": 1.0},
        "b": {"type": "boolean", "default": True},
        "z": {"type": "null"},
        "i": {"type": "integer", "default": 10000000000},
    },
)
BOTH = [LOOK, WAIT]
ARGUMENTS = '{"at": "it", "n": 2}'
USER, AGAIN, SYSTEM = say("user", "Look at it."), say("user", "And now?"), say("system", "Be brief.")
ANSWER = say("assistant", "Hi there.")
THOUGHT = say("assistant", "It is a cat.", reasoning_content="The user asks. It is a cat.")
PARTS = say("user", parts("First part.", "Second part."))
CALL = call("", (FIRST, "look", ARGUMENTS))
CALL_WITH_TEXT = call("I will look.", (FIRST, "look", ARGUMENTS), reasoning_content="Let me look.")
CALLS = call("", (FIRST, "look", '{"at": "it"}'), (SECOND, "wait_for", '{"s": 1.5}'))
RESULT = say("tool", "It is a cat.", tool_call_id=FIRST)
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {}}}}}


def chat(*messages: Body, **fields: Any) -> Body:
    return {"messages": list(messages), **fields}


def tell(**variables: Any) -> Body:
    return {"chat_template_kwargs": variables}


CONVERSATIONS: dict[str, Body] = {
    "user": chat(USER),
    "system": chat(SYSTEM, USER),
    "turns": chat(SYSTEM, USER, ANSWER, AGAIN),
    "developer": chat(say("developer", "Be brief."), USER),
    "parts": chat(PARTS),
    "parts of a system": chat(say("system", parts("Be", "brief.")), PARTS, ANSWER, AGAIN),
    "one part": chat(say("user", parts("Only."))),
    "thinks": chat(SYSTEM, USER, **tell(enable_thinking=True)),
    "does not think": chat(SYSTEM, USER, **tell(enable_thinking=False)),
    "kept thoughts": chat(USER, THOUGHT, AGAIN),
    "thoughts kept twice": chat(USER, THOUGHT, AGAIN, THOUGHT, USER),
    "thoughts not kept": chat(USER, THOUGHT, AGAIN, **tell(preserve_reasoning=False)),
    "effort": chat(USER, **tell(reasoning_effort="low")),
    "variables": chat(USER, **tell(custom="x", thinking=True, enable_thinking=True)),
    "no generation prompt": chat(USER, ANSWER, AGAIN, add_generation_prompt=False),
    "begun": chat(USER, say("assistant", "It is")),
    "begun, with a blank": chat(SYSTEM, USER, ANSWER, AGAIN, say("assistant", "It is ")),
    "begun thoughts": chat(USER, say("assistant", "", reasoning_content="The user")),
    "begun after thoughts": chat(USER, say("assistant", "It is", reasoning_content="The user asks.")),
    "begun without thoughts": chat(USER, say("assistant", "It is"), **tell(enable_thinking=False)),
    "begun in parts": chat(USER, say("assistant", parts("It", "is"))),
    "begun alone": chat(say("assistant", "It is")),
    "begun as told": chat(USER, say("assistant", "It is"), continue_final_message=True, add_generation_prompt=False),
    "begun content as told": chat(
        USER,
        say("assistant", "It is", reasoning_content="Hm."),
        continue_final_message="content",
        add_generation_prompt=False,
    ),
    "begun thoughts as told": chat(
        USER,
        say("assistant", "It is", reasoning_content="Hm."),
        continue_final_message="reasoning_content",
        add_generation_prompt=False,
    ),
    "two answers at the end": chat(USER, ANSWER, ANSWER),
    "call at the end": chat(USER, CALL, tools=[LOOK]),
    "tools": chat(SYSTEM, USER, tools=BOTH),
    "tools, none to be called": chat(SYSTEM, USER, tools=BOTH, tool_choice="none"),
    "tools, one to be called": chat(SYSTEM, USER, tools=BOTH, tool_choice="required"),
    "tools without a system": chat(USER, tools=[LOOK]),
    "tools and a developer": chat(say("developer", "Be brief."), USER, tools=[LOOK]),
    "bare tool": chat(USER, tools=[make_tool("bare", None, None)]),
    "no tools": chat(USER, tools=[]),
    "call and result": chat(SYSTEM, USER, CALL, RESULT, ANSWER, AGAIN, tools=BOTH),
    "result with a name": chat(SYSTEM, USER, CALL, {**RESULT, "name": "look"}, ANSWER, AGAIN, tools=BOTH),
    "call with null": chat(USER, call(None, (FIRST, "look", ARGUMENTS)), RESULT, tools=[LOOK]),
    "call without content": chat(
        USER, {name: value for name, value in CALL.items() if name != "content"}, RESULT, tools=[LOOK]
    ),
    "call after thoughts": chat(USER, CALL_WITH_TEXT, RESULT, tools=[LOOK]),
    "call, not thinking": chat(
        USER, CALL_WITH_TEXT, RESULT, ANSWER, AGAIN, tools=[LOOK], **tell(enable_thinking=False)
    ),
    "result of JSON": chat(
        USER, CALL, say("tool", '{"kind": "cat", "legs": [1, 2]}', tool_call_id=FIRST), tools=[LOOK]
    ),
    "result in parts": chat(PARTS, CALL, say("tool", parts("It is", "a cat."), tool_call_id=FIRST), tools=[LOOK]),
    "arguments as an object": chat(USER, call("", (FIRST, "look", {"at": "it", "n": 2})), RESULT, tools=[LOOK]),
    "two calls": chat(USER, CALLS, RESULT, say("tool", "ok", tool_call_id=SECOND), tools=BOTH),
    "call without tools": chat(USER, CALL, RESULT),
    "arguments that are cut off": chat(USER, call("", (FIRST, "look", '{"at": "i')), RESULT, tools=[LOOK]),
    "long id": chat(
        USER,
        call("", ("call_1234567", "look", '{"at": "it"}')),
        say("tool", "It is a cat.", tool_call_id="call_1234567"),
        tools=[LOOK],
    ),
    "schema": chat(USER, response_format=SCHEMA),
    "empty": chat(say("user", "")),
    "null": chat(say("user", None)),
    "other letters": chat(say("system", "Sei höflich. 🙂"), say("user", '日本語 "quoted" <b> \\n'), tools=[WORDS]),
    "late system": chat(USER, ANSWER, SYSTEM, AGAIN),
    "two users": chat(USER, AGAIN),
    "system alone": chat(SYSTEM),
}
