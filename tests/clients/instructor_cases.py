"""What do programs do with instructor?"""

from typing import Any

import instructor
import openai
from cases import LONG, URL, case, find_refusal, run
from pydantic import BaseModel, field_validator


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


class Grown(Person):
    @field_validator("age")
    @classmethod
    def is_grown(cls, age: int) -> int:
        if age < 18:
            raise ValueError("too young")
        return age


class Mood(BaseModel):
    """How somebody is."""

    is_well: bool


def connect(mode: instructor.Mode) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0), mode=mode)


def ask(question: str, mode: instructor.Mode, model: Any = Person, name: str = "scripted") -> Any:
    messages = [{"role": "user", "content": question}]
    return connect(mode).chat.completions.create(model=name, messages=messages, response_model=model, max_retries=2)


@case
def structured_by_call() -> Any:
    return ask("Who is Ada? Call Person", instructor.Mode.TOOLS).model_dump()


@case
def structured() -> Any:
    return ask("Who is Ada?", instructor.Mode.JSON_SCHEMA).model_dump()


@case
def structured_json() -> Any:
    return ask("Who is Ada?", instructor.Mode.JSON).model_dump()


@case
def structured_markdown() -> Any:
    return ask("Who is Ada? Use a fence", instructor.Mode.MD_JSON).model_dump()


@case
def several() -> Any:
    return [item.model_dump() for item in ask("Who are they?", instructor.Mode.TOOLS, list[Person])]


@case
def several_streamed() -> Any:
    made = connect(instructor.Mode.TOOLS).chat.completions
    messages = [{"role": "user", "content": "Who are they?"}]
    people = made.create_iterable(model="scripted", messages=messages, response_model=Person)
    return [item.model_dump() for item in people]


@case
def partial() -> Any:
    made = connect(instructor.Mode.TOOLS).chat.completions
    messages = [{"role": "user", "content": "Who is Ada? Call Person"}]
    seen = [
        item.model_dump() for item in made.create_partial(model="scripted", messages=messages, response_model=Person)
    ]
    return seen[-1]


@case
def asked_again() -> Any:
    """The answer is of the right form but is not accepted: the conversation goes on with the reason."""
    return ask("How old is Bo?", instructor.Mode.TOOLS, Grown).model_dump()


@case
def too_long() -> Any:
    return find_refusal(lambda: ask(LONG, instructor.Mode.TOOLS))


@case
def unknown_model() -> Any:
    return find_refusal(lambda: ask("Say hello", instructor.Mode.TOOLS, name="nobody"))


@case
def no_tools() -> Any:
    return find_refusal(lambda: ask("Say hello", instructor.Mode.TOOLS, name="plain"))


run()
