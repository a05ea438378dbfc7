"""The one thread that computes runs what it is given in order, and ends when it is told."""

import threading

from llamactl.instance.llama.thread import ComputeThread


def test_tasks_run_in_order_on_one_thread() -> None:
    thread = ComputeThread()
    ran: list[tuple[int, int]] = []
    for number in range(5):
        thread.run(lambda number=number: ran.append((number, threading.get_ident())))  # type: ignore[misc]
    assert thread.end(10)
    assert [number for number, _ in ran] == list(range(5))
    assert len({ident for _, ident in ran}) == 1
    assert ran[0][1] != threading.get_ident()


def test_end_that_takes_too_long_is_told() -> None:
    thread, gate = ComputeThread(), threading.Event()
    thread.run(lambda: gate.wait() and None)
    assert not thread.end(0.01)
    gate.set()
    assert thread.end(10)
