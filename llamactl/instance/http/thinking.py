"""Does the model think before it answers, how long, and who sees it? From a request's fields, which several servers
have given several names, and the model's configuration.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from llamactl.bodies import ChatBody, parse_template_variables, refuse
from llamactl.instance.chat.conversation import choose_variables
from llamactl.settings import ModelSettings

ReasoningFormat = Literal["none", "auto", "deepseek"]


@dataclass(frozen=True)
class ThinkingParameters:
    """Of one request."""

    format: ReasoningFormat = "deepseek"
    """`none`: thoughts are content."""
    budget: int | None = None
    """Tokens; None: any number."""
    message: str = ""
    """Last words of thoughts that are ended."""


def choose_thinking(body: ChatBody, settings: ModelSettings) -> tuple[ThinkingParameters, dict[str, Any]]:
    """With the variables that the template gets. Raises LlamactlError(INVALID_REQUEST) that names the field.

    What the request says comes before the configuration, its own fields before `chat_template_kwargs`.
    """
    given = parse_template_variables(body.chat_template_kwargs)
    variables = choose_variables(settings.reasoning, settings.chat_template_kwargs, given)
    if body.reasoning_effort == "none":
        variables["enable_thinking"] = False
        variables.pop("reasoning_effort", None)
    elif body.reasoning_effort:
        variables["reasoning_effort"] = body.reasoning_effort
    if body.enable_thinking is not None:
        variables["enable_thinking"] = body.enable_thinking
    reasoning_format = body.reasoning_format or "auto"
    if reasoning_format not in get_args(ReasoningFormat):
        raise refuse(f"cannot use `reasoning_format`: {reasoning_format[:40]!r} is none of none, auto and deepseek")
    parameters = ThinkingParameters(
        format=cast(ReasoningFormat, reasoning_format),
        budget=_choose_budget(body, settings.reasoning_budget),
        message=body.reasoning_budget_message or "",
    )
    return parameters, variables


def _choose_budget(body: ChatBody, default: int) -> int | None:
    for name in ("reasoning_budget_tokens", "thinking_budget_tokens"):
        value: int | None = getattr(body, name)
        if value is None:
            continue
        if value < -1:
            raise refuse(f"cannot use `{name}`: {value} is negative")
        if value >= 0:
            return value
        break
    return default if default >= 0 else None
