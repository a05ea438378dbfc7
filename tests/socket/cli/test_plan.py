"""`plan`: what it says and how it ends."""

import json

import pytest

from llamactl.protocol.control_socket import PlanRequest, PlanResult
from llamactl.protocol.descriptions import LoadPlan
from tests.socket.cli.scripted import answer, ask

STATUSES = {
    "loaded": 0,
    "loading": 0,
    "measure": 0,
    "blind": 0,
    "fits": 0,
    "evict": 0,
    "wait": 0,
    "pinned": 5,
    "refused": 5,
    "invalid": 1,
}


@pytest.mark.parametrize(("outcome", "status"), STATUSES.items())
def test_plan_ends_as_the_load_would(outcome: str, status: int) -> None:
    plan = PlanResult(id=1, plan=LoadPlan(model="m", outcome=outcome, words="it would be so"))
    result, requests = ask(answer(plan), "plan", "m")
    assert requests == [PlanRequest(id=1, model="m")]
    assert (result.status, result.out) == (status, "m: it would be so\n")
    result, _ = ask(answer(plan), "plan", "m", "--json")
    assert (result.status, json.loads(result.out)["outcome"]) == (status, outcome)
