"""Hosts that serve one store in processes of their own, watched while they do; and whoever publishes to them."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from contracts.artifact import read_manifest
from contracts.bundle import BundleManifest
from contracts.release import IndexManifest
from indexing.stores import open_store
from indexing.update_record import Update
from processes import eventually, free_port

TOKEN = "a token"
ADS = [f"ad-{number}" for number in range(30)]
QUERY = {"country": "DE", "device": "FR", "user_ctr": 0.2}
NEW_AD = {
    "ad_id": "new-ad",
    "bid": 2.0,
    "content": {
        "scenario": "shopping",
        "valid_from": "2026-02-01T00:00:00Z",
        "objective": "click",
        "advertiser_id": "advertiser-new",
        "features": {"ad_key": "key-new", "tags": ["t2"], "price": 3.0},
    },
}


SETTINGS = {
    "ADSIEVE_ENGINE_THREADS": "1",
    "ADSIEVE_HEAVY_ENGINE": "onnxruntime_cpu",
    "ADSIEVE_QUERY_ENGINE": "onnxruntime_cpu",
    "ADSIEVE_POLL_INTERVAL_S": "0.2",
    "ADSIEVE_FAILED_RETRY_S": "0.5",
    "ADSIEVE_ADMIN_TOKEN": TOKEN,
    "OMP_NUM_THREADS": "1",
}


def adsieve(*arguments: object, given: str = "") -> str:
    """Run a command, which must succeed."""
    command = [sys.executable, "-m", "adsieve", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, input=given, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Host:
    """``adsieve serve`` in a process of its own.

    Args:
        store: Directory or URL.
        local: Its directory of this host.
        log: File for what it prints.
        watch: Sees every answer.
    """

    def __init__(self, store: str, local: Path | None, log: Path, watch: "Watch") -> None:
        self.store, self.local, self.log, self._watch = store, local, log, watch
        self._process: subprocess.Popen | None = None
        self._client: httpx.Client

    def start(self) -> "Host":
        """Start it; not yet ready when this returns."""
        port = free_port()
        command = [sys.executable, "-m", "adsieve", "serve", "--store", self.store, "--port", str(port)]
        command += ["--local", str(self.local)] if self.local is not None else []
        with open(self.log, "ab") as output:
            self._process = subprocess.Popen(command, env=os.environ | SETTINGS, stdout=output, stderr=output)
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        return self

    def kill(self) -> None:
        """As the kernel does it (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._client.close()

    def applies(self, index: str) -> bool:
        """Whether this process applies the updates of an index, by its own word."""
        return f"this process applies the updates of {index}" in self.log.read_text()

    def ready(self) -> dict[str, Any]:
        """The answer of /health/ready; empty while nobody listens."""
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        with suppress(httpx.TransportError):
            return dict(self._client.get("/health/ready").json())
        return {}

    def wait_ready(self) -> "Host":
        eventually(lambda: self.ready().get("ready"), f"{self.log}: not ready")
        return self

    def faults(self) -> list[str]:
        return [fault["error"] for fault in self.ready().get("faults", [])]

    def rank(self, ids: Iterable[str]) -> httpx.Response:
        """Ask for all of ``ids``, with the heavy ranker."""
        body = {"scenario": "shopping", "query": QUERY, "candidates": {"ids": [*ids]}, "survivors": 100}
        gone = self._watch.gone_at(self)
        answer = self._client.post("/rank", json=body)
        if answer.status_code == 200:
            self._watch.see(self, gone, answer.json())
        return answer

    def shown(self, ids: Iterable[str] = ADS) -> set[str]:
        """Which of ``ids`` are ranked."""
        return set(self.rank(ids).raise_for_status().json()["ads"]["ids"])

    def index(self) -> str | None:
        """Version of the index that serves."""
        return self._client.get("/releases").raise_for_status().json()["serving"][0]["index"]

    def roll_back(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = self._client.post("/admin/rollback", json={"scenario": "shopping"}, headers=headers)
        return dict(answer.raise_for_status().json())


class Watch:
    """Asks hosts again and again, and notes each answer that is not of one release or shows an ad that was gone.

    ``pairs`` are versions of two-tower, heavy and index that belong together.
    """

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str, str]] = set()
        self.wrong: list[str] = []
        self.num_answers = 0
        self._gone: dict[Host, set[str]] = {}
        self._stop = threading.Event()

    def gone(self, ad_id: str, hosts: Iterable[Host]) -> None:
        """From now on these hosts must not show this ad."""
        for host in hosts:
            self._gone.setdefault(host, set()).add(ad_id)

    def gone_at(self, host: Host) -> set[str]:
        return set(self._gone.get(host, ()))

    def see(self, host: Host, gone: set[str], answer: dict[str, Any]) -> None:
        """An answer to a request that began when ``gone`` were gone."""
        versions = answer["release"]["shopping"]
        found = (versions["two_tower"], versions["heavy"], versions["index"])
        self.num_answers += 1
        if found not in self.pairs:
            self.wrong.append(f"{host.log.name}: serves {found}")
        if back := gone & set(answer["ads"]["ids"]):
            self.wrong.append(f"{host.log.name}: shows {back} again")

    def follow(self, host: Host) -> None:
        """Ask a host in a thread of its own, as long as it runs."""

        def ask() -> None:
            while not self._stop.wait(0.1):
                with suppress(httpx.TransportError, RuntimeError):  # killed, or not up yet
                    host.rank(ADS)

        threading.Thread(target=ask, daemon=True).start()

    def stop(self) -> None:
        self._stop.set()


class Site:
    """A store, the hosts that serve it, and the machine that builds and publishes.

    Args:
        store: Directory or URL.
        local: Directory of that machine.
        parts: Bundles, indexes and catalogue.
        watch: Told which parts belong together, and what is gone.
    """

    def __init__(self, store: object, local: Path | None, parts: Path, watch: Watch) -> None:
        self.store, self.parts, self._watch = open_store(str(store), local=local), parts, watch
        self.where = ["--store", store, *(["--local", local] if local is not None else [])]
        self.hosts: list[Host] = []

    def bundles(self, prefix: str = "") -> list[object]:
        return ["--two-tower", self.parts / f"{prefix}two_tower", "--heavy", self.parts / "heavy"]

    def publish(self, prefix: str = "") -> str:
        """Publish an index that was built without updates, and wait for every host to serve it; return its version."""
        index = self.parts / f"{prefix}index"
        self.expect(index)
        tower, heavy = self.parts / f"{prefix}two_tower", self.parts / "heavy"
        version = self.store.publish(two_tower=tower, heavy=heavy, index=index).index
        self.wait_for(version)
        return version

    def expect(self, index: Path) -> None:
        """An index that hosts may serve from now on."""
        manifest, heavy = read_manifest(index, IndexManifest), read_manifest(self.parts / "heavy", BundleManifest)
        self._watch.pairs.add((manifest.two_tower, heavy.version, manifest.version))

    def wait_for(self, index: str) -> None:
        for host in self.hosts:
            eventually(lambda host=host: host.index() == index, f"{host.log.name} does not serve {index}")

    def take_down(self, ad_id: str) -> None:
        """Take an ad down and wait until no host shows it; from then on none may."""
        self.append_takedown(ad_id)
        self.wait_gone(ad_id)

    def append_takedown(self, ad_id: str) -> None:
        self.store.append_updates([Update(ad_id=ad_id, at=time.time_ns() // 1000, takedown=True)])

    def wait_gone(self, ad_id: str) -> None:
        for host in self.hosts:
            eventually(lambda host=host: ad_id not in host.shown(), f"{host.log.name} shows {ad_id}")
        self._watch.gone(ad_id, self.hosts)

    def bring_new_ad(self) -> None:
        """By the command."""
        adsieve("index", "update", "-", *self.where, given=json.dumps(NEW_AD))
        for host in self.hosts:
            eventually(lambda host=host: host.shown(["new-ad"]), f"{host.log.name} does not show the new ad")
