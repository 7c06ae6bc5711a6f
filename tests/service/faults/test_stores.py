"""Redis goes, comes back empty or hangs; a corrupt release is published: what serves goes on, and says so."""

import json
import shutil

import pytest

from contracts.errors import AdsieveError
from indexing.stores import open_store
from service.cli import rank_file
from service.environment import load_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def publish(artifacts):
    """Puts a generation of a scenario on top of a store."""

    def put(store, scenario, generation):
        return store.publish(
            two_tower=artifacts / f"{scenario}-{generation}",
            heavy=artifacts / "heavy",
            index=artifacts / f"{scenario}-{generation}-index",
        )

    return put


def failures(service, what):
    return service.metrics().get(f'adsieve_follow_failures_total{{what="{what}"}}', 0)


def test_redis_goes_comes_back_empty_and_hangs(serve, redis_server, tmp_path, publish, processes, body):
    store = open_store(redis_server.url, local=tmp_path / "publisher")
    first = publish(store, "shopping", 0)
    service = serve(redis_server.url, "--workers", "2").wait_ready(2)
    with processes.Asking(service, body) as asking:
        redis_server.stop()
        processes.eventually(lambda: "refresh" in service.faults(), "no fault is told")
        assert set(asking.wait_for(20)) == {200}
        assert service.ready()["serving"] == {"shopping": first.release_id}
        processes.eventually(lambda: failures(service, "refresh") > 0, "no failure is counted")
        redis_server.start()  # empty: what it held went with it
        processes.eventually(lambda: not service.faults(), "a fault is still told")
        assert set(asking.wait_for(20)) == {200}
        redis_server.client.client_pause(3_000)
        assert set(asking.wait_for(20)) == {200}
        processes.eventually(lambda: not service.faults(), "a fault is still told")
        second = publish(store, "shopping", 1)
        processes.eventually(lambda: service.ready()["serving"] == {"shopping": second.release_id}, "not the new one")
    assert set(asking.statuses) == {200}
    assert service.metrics()["adsieve_ready_processes"] == 2


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.unlink()  # other links to the file keep what they had
    path.write_bytes(data)


def cut(path):
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


def remove(path):
    path.unlink()


DAMAGES = [
    (flip, "index", "vectors.npy"),
    (cut, "index", "bias.npy"),
    (remove, "index", "manifest.json"),
    (flip, "two_tower", "query_tower.onnx"),
    (cut, "two_tower", "weights.safetensors"),
    (remove, "two_tower", "requests.jsonl"),
]


def test_corrupt_releases_are_refused_told_and_replaced_by_the_next_good_one(
    serve, own_world, publish, processes, body, artifacts
):
    service = serve(own_world.root, "--workers", "2").wait_ready(2)
    good = own_world.store.current("shopping").release_id
    with processes.Asking(service, body) as asking:
        for number, (damage, part, name) in enumerate(DAMAGES):
            before = refused(service)
            service.stall()  # so that nobody sees it whole
            release = publish(own_world.store, "shopping", 1)
            directory = getattr(own_world.store.paths(release), part)
            damage(directory / name)
            service.go_on()
            processes.eventually(lambda before=before: refused(service) > before, f"{name}: nothing is refused")
            for _ in range(4):  # whichever worker is asked, once it has tried
                processes.eventually(
                    lambda release=release: (
                        [one["release_id"] for one in service.ready()["refused"] if one["scenario"] == "shopping"]
                        == [release.release_id]
                    ),
                    f"{name}: it is not told",
                )
                assert service.ready()["ready"] is True
                assert service.ready()["serving"]["shopping"] == good
            shutil.rmtree(directory)  # a publish finds it gone and brings it again
            own_world.store.rollback("shopping", good)
            processes.eventually(lambda: not service.ready()["refused"], f"{number}: it is still told")
        assert set(asking.wait_for(20)) == {200}
        mended = publish(own_world.store, "shopping", 1).release_id
        for _ in range(4):
            processes.eventually(lambda: service.ready()["serving"]["shopping"] == mended, "not the mended one")
    assert set(asking.statuses) == {200}


def refused(service):
    return service.metrics().get('adsieve_release_failures_total{scenario="shopping"}', 0)


def test_the_command_ranks_from_a_mirror_whose_files_were_damaged(redis_server, tmp_path, publish, body):
    publish(open_store(redis_server.url, local=tmp_path / "publisher"), "shopping", 0)
    request, mirror = tmp_path / "request.json", tmp_path / "mirror"
    request.write_text(json.dumps(body))
    settings = load_settings(redis_server.url, mirror)
    answer = rank_file(request, settings)
    for path in mirror.rglob("vectors.npy"):
        flip(path)
    again = rank_file(request, settings)
    assert (again.ads.ids, again.ads.utilities) == (answer.ads.ids, answer.ads.utilities)
    redis_server.stop()
    for path in mirror.rglob("vectors.npy"):
        flip(path)
    with pytest.raises(AdsieveError):
        rank_file(request, settings)
