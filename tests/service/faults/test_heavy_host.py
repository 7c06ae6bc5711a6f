"""The host of the heavy stage is killed, stalls, or another server stands in its place: answers in light order."""

import random
import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HEAVY_UP = "adsieve_heavy_host_up"


@pytest.fixture
def pair(serve, own_world):
    """A service that ranks, and the host that runs its heavy stage."""
    host = serve(own_world.root, "--role", "heavy").wait_ready()
    ranks = serve(own_world.root, ADSIEVE_HEAVY_URL=f"http://127.0.0.1:{host.port}").wait_ready()
    return ranks, host


def is_up(service):
    return {value for name, value in service.metrics().items() if name.startswith(HEAVY_UP)} == {1.0}


def check_light_order(service, body, processes, reason):
    """It answers, says why it is degraded, and says so in /health and /metrics; ready all the same."""
    before = degraded(service)
    answers = [service.rank(body) for _ in range(5)]
    found = {answer["degraded"]["reason"] for answer in answers if answer["degraded"]}
    assert len([answer for answer in answers if answer["degraded"]]) == 5
    assert found <= {"failed", reason}
    assert all(answer["ads"]["heavy"] is None for answer in answers)
    assert all(sorted(answer["ads"]["utilities"], reverse=True) == answer["ads"]["utilities"] for answer in answers)
    assert degraded(service) == before + 5
    processes.eventually(lambda: service.faults().get("heavy"), "no fault is told")
    processes.eventually(lambda: not is_up(service), "the host is told to be up")
    assert service.ready()["ready"] is True
    return service.faults()["heavy"]


def degraded(service):
    return sum(value for name, value in service.metrics().items() if name.startswith("adsieve_degraded_requests_total"))


def check_whole(service, body, processes):
    processes.eventually(lambda: service.rank(body)["degraded"] is None, "still degraded")
    processes.eventually(lambda: is_up(service), "the host is told to be down")
    assert service.faults() == {}


def test_killed_and_started_again(pair, processes, body):
    service, host = pair
    check_whole(service, body, processes)
    counts = host.metrics()
    assert counts['adsieve_stage_seconds_count{stage="heavy"}'] >= 1
    assert counts['adsieve_stage_seconds_count{stage="light"}'] == 0
    host.kill()
    told = check_light_order(service, body, processes, "failed")
    assert "refused" in told
    host.start().wait_ready()
    check_whole(service, body, processes)


def test_stalled(pair, processes, body):
    service, host = pair
    check_whole(service, body, processes)
    host.stall()
    told = check_light_order(service, body, processes, "failed")
    assert "did not answer within 300 ms" in told
    late = service.rank(body | {"timeout_ms": 100})
    assert late["degraded"]["reason"] in ("deadline", "failed")
    host.go_on()
    check_whole(service, body, processes)


def answer(status, content, declared=None):
    head = f"HTTP/1.1 {status} Told\r\nContent-Type: application/msgpack\r\n"
    return f"{head}Content-Length: {len(content) if declared is None else declared}\r\n\r\n".encode() + content


def noise():
    yield random.Random(3).randbytes(10_000)


def wrong_body():
    yield answer(200, random.Random(4).randbytes(500))


def errors():
    yield answer(500, b"no")


def huge():
    yield answer(200, b"", declared=1 << 40)
    while True:
        yield bytes(1 << 20)


def drip():
    yield answer(200, b"", declared=1_000)
    while True:
        time.sleep(0.05)
        yield b"x"


def nothing():
    yield b""


GARBAGE = {"noise": noise, "wrong body": wrong_body, "500": errors, "huge": huge, "drip": drip, "nothing": nothing}


def test_garbage_in_its_place(pair, processes, body):
    """One after another over the same port, so that each begins where the one before had left things."""
    service, host = pair
    check_whole(service, body, processes)
    host.kill()
    for name, pieces in GARBAGE.items():
        with processes.answering(host.port, pieces):
            time.sleep(0.6)  # the pause after failures is over, so that it is asked
            assert check_light_order(service, body, processes, "failed"), name
    host.start().wait_ready()
    check_whole(service, body, processes)


def test_an_answer_of_a_wrong_shape_or_with_what_is_no_number(pair, processes, body, own_world):
    import msgspec

    from service.heavy_wire import HeavyAnswer

    service, host = pair
    check_whole(service, body, processes)
    version = own_world.store.current("shopping").heavy
    host.kill()
    shapes = {"one row": 8, "no rows": 0, "too many": 8_000}
    contents = {name: bytes(size) for name, size in shapes.items()} | {"not a number": b"\x00\x00\xc0\x7f" * 12}
    for name, logits in contents.items():
        wrong = msgspec.msgpack.encode(HeavyAnswer(version=version, tasks=("click", "conversion"), logits=logits))
        with processes.answering(host.port, lambda wrong=wrong: iter([answer(200, wrong)])):
            time.sleep(0.6)
            assert check_light_order(service, body, processes, "failed"), name
    host.start().wait_ready()
    check_whole(service, body, processes)
