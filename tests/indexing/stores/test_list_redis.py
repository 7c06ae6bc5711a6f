"""`index list` of a Redis store that came back with nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from indexing.cli import app
from indexing.redis_store import RedisStore


def test_what_redis_lost_is_told_and_listed_from_the_mirror(
    server: Any, host: Callable[[str], RedisStore], publish: Callable, tmp_path: Path
) -> None:
    def told() -> dict[str, Any]:
        options = ["--store", server.url, "--local", str(tmp_path / "a")]
        result = CliRunner().invoke(app, ["list", *options, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    release = publish(host("a"))
    sound = told()
    assert sound["warnings"] == []
    server.empty()
    found = told()
    assert [one["release_id"] for one in found["releases"]["shopping"]] == [release.release_id]
    assert found["warnings"] == [
        f"{server.url} has lost the releases of shopping: they are listed as this host mirrors them, and the next "
        "publish brings them back"
    ]
    again = publish(host("a"), "other_")
    assert told()["warnings"] == []
    assert list(host("b").names("shopping")) == []
    later = host("b")
    later.refresh()
    assert list(later.names("shopping")) == [again.release_id, release.release_id]
    server.stop()
    assert told()["warnings"] == []  # out of reach, which stderr tells
