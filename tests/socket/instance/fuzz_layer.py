"""Can any request end the process that applies a template? `python -m tests.socket.instance.fuzz_layer SECONDS SEED`:
conversations with something in them replaced, doubled or left out, for templates of all families. What a request says
may be refused; everything else ends this process, and the last line says with what.
"""

import copy
import json
import random
import sys
import time
from typing import Any

from llamactl.errors import LlamactlError
from llamactl.instance.chat.layer import ApplyRequest, ChatLayer, LayerTemplate
from tests.sdist import read_templates
from tests.socket.instance.conversations import CONVERSATIONS

JUNK: list[Any] = [
    None, True, 0, -1, 2**63, 1e308, "", "\0", "\ud7ff", "{", "[1", '{"a": ' * 50, "x" * 5000, "{{ messages }}",
    "{% endfor %}", "<tool_call>", "</think>", "<|im_end|>", "%s%n", [], [[]], [None], {}, {"": ""}, {"type": "text"},
    {"$ref": "#"}, {"type": "array"}, {"pattern": "(["}, {"enum": []}, {"anyOf": []}, {"properties": {"a": 1}},
]  # fmt: skip
CHOICES: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto", "none", "required"),
    "parallel_tool_calls": (None, True, False),
    "reasoning_format": ("none", "auto", "deepseek"),
    "continue_final_message": (False, True, "content", "reasoning_content"),
    "add_generation_prompt": (True, False),
    "enable_thinking": (True, False),
}


def list_places(value: Any) -> list[tuple[Any, Any]]:
    """Containers with a key or an index of theirs, of all depths."""
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        container = waiting.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            places.append((container, key))
            if isinstance(container[key], dict | list):
                waiting.append(container[key])
    return places


def mutate(conversation: Any, chance: random.Random) -> Any:
    mutated = copy.deepcopy(conversation)
    for _ in range(chance.randint(1, 3)):
        places = list_places(mutated)
        if not places:
            break
        container, key = chance.choice(places)
        match chance.randint(0, 2):
            case 0:
                container[key] = copy.deepcopy(chance.choice(JUNK))
            case 1:
                del container[key]
            case _ if isinstance(container, list):
                container.insert(key, copy.deepcopy(container[key]))
    return mutated


def apply(template: LayerTemplate, mutated: Any, options: dict[str, Any]) -> bool:
    """Whether it was taken."""
    variables = mutated.get("chat_template_kwargs")
    try:
        applied = template.apply(
            ApplyRequest(
                messages=mutated.get("messages"),
                tools=mutated.get("tools"),
                json_schema=mutated.get("response_format"),
                chat_template_kwargs=variables if isinstance(variables, dict) else {},
                **options,
            )
        )
        template.start_answer(applied, is_continuation=bool(options["continue_final_message"])).close()
    except LlamactlError:
        return False
    return True


def main() -> None:
    until_s, chance = time.monotonic() + float(sys.argv[1]), random.Random(int(sys.argv[2]))
    layer = ChatLayer()
    opened = [layer.open_template(source, None) for source in read_templates().values()]
    n_taken = n_refused = 0
    while time.monotonic() < until_s:
        index, title = chance.randrange(len(opened)), chance.choice(list(CONVERSATIONS))
        mutated = mutate(CONVERSATIONS[title], chance)
        options = {name: chance.choice(values) for name, values in CHOICES.items()}
        sys.stderr.write(f"\r{json.dumps([index, mutated, options])}\n")
        if apply(opened[index], mutated, options):
            n_taken += 1
        else:
            n_refused += 1
    print(n_taken, n_refused)


if __name__ == "__main__":
    main()
