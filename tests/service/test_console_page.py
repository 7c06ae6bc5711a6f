"""The console in a headless Chromium, over a real service of two worker processes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loading import load

pytestmark = pytest.mark.apt

ATTACK = '<img src=x onerror="window.attacked = 1">'
TILES = """Object.fromEntries([...document.querySelectorAll('#panel-%s .tile')].map(
  tile => [...tile.children].slice(0, 2).map(part => part.textContent)))"""
STEPS = "[...document.querySelectorAll('.funnel b')].map(step => Number(step.textContent.replace(',', '')))"
ROLLBACK = "[...document.querySelectorAll('[data-key]')].find(one => one.dataset.key === 'rollback-shopping')"
FIND = """(() => {
  const field = document.querySelector('#ads input');
  field.value = %r;
  field.dispatchEvent(new Event('input'));
})()"""
FOCUS = "[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"
HEADERS = {"Authorization": "Bearer secret"}


helpers = load("service/console_browser.py")
PHONE, DESK, PANELS = helpers.PHONE, helpers.DESK, helpers.PANELS


@pytest.fixture(scope="module")
def world(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store whose shopping scenario has two releases, for this module alone."""
    from indexing.store import DirectoryStore

    store = DirectoryStore(tmp_path_factory.mktemp("console") / "store")
    for scenario, generation in (("shopping", 0), ("standard", 0), ("shopping", 1)):
        parts = (artifacts / f"{scenario}-{generation}", artifacts / f"{scenario}-{generation}-index")
        store.publish(two_tower=parts[0], heavy=artifacts / "heavy", index=parts[1])
    return store


@pytest.fixture(scope="module")
def url(world: Any) -> Iterator[str]:
    engines = {"query_engine": "onnxruntime_cpu", "heavy_engine": "onnxruntime_cpu", "engine_threads": "1"}
    with helpers.service_process(world.root, admin_token="secret", poll_interval_s="0.2", **engines) as url:
        yield url


@pytest.fixture(scope="module")
def console(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium = load("distill/chromium.py")
    program = chromium.find_chromium()
    if program is None:
        pytest.skip("needs a Chromium on the PATH: apt-get install chromium")
    with chromium.open_chromium(program, tmp_path_factory.mktemp("profile")) as page:
        yield helpers.ConsoleBrowser(page, url)


@pytest.fixture
def request_of_1000(example_query: Any) -> dict[str, Any]:
    ids = [f"standard-{i}" for i in range(1, 1_001)]
    ids[10:13] = [ATTACK, "standard-1", "shopping-1"]
    return {"request_id": "r-1000", "scenario": "standard", "query": example_query(2), "candidates": ids}


def ranked(url: str, request: dict[str, Any], against: str | None = None) -> Any:
    answer = httpx.post(f"{url}/admin/console/rank", json={"request": request, "against": against}, headers=HEADERS)
    return answer.raise_for_status().json()


def send_some(url: str, requests: int = 20) -> None:
    body = {"scenario": "standard", "query": {}, "candidates": [f"standard-{i}" for i in range(1, 50)] + ["gone"]}
    for _ in range(requests):
        httpx.post(f"{url}/rank", json=body).raise_for_status()


def test_it_asks_for_the_token_and_keeps_it_in_the_tab(console: Any) -> None:
    console.open(token=None)
    assert console.page.complaints() == []
    assert not [address for address in console.page.requests() if "/admin/" in address or address.endswith("/metrics")]
    assert console.violations() == []
    assert console.run("document.activeElement.id") == "token"
    console.sign_in("wrong")
    console.wait("document.getElementById('sign-in-why').textContent.includes('another token')")
    assert console.run("document.getElementById('token').value") == ""
    console.sign_in("secret")
    console.wait("document.querySelector('#panel-releases article')")
    assert console.run("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 1]
    assert "secret" not in console.run("location.href")
    console.press("sign-out")
    assert console.run("[sessionStorage.length, document.querySelectorAll('article').length]") == [0, 0]


@pytest.mark.parametrize("width", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("name", PANELS)
def test_each_panel_renders_without_complaints_and_asks_no_other_host(
    console: Any, url: str, name: str, width: int
) -> None:
    console.open(width=width)
    if name == "live":
        console.run("document.querySelector('#panels a[href=\"#live\"]').click()")
        send_some(url)
    console.panel(name)
    assert console.page.complaints() == []
    asked = console.page.requests()
    assert len(asked) > 10
    assert [address for address in asked if not address.startswith(f"{url}/")] == []
    assert console.overflow() <= 0
    console.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    console.run("document.querySelector('.opens')?.click()")
    assert console.overflow() <= 0
    assert console.violations() == []


@pytest.mark.parametrize("name", PANELS)
def test_everything_is_readable_in_the_dark(console: Any, name: str) -> None:
    console.open(width=PHONE, dark=True)
    console.panel(name)
    console.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert console.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
    assert console.violations() == []


def test_axe_would_tell_of_faults(console: Any) -> None:
    console.open()
    console.panel("releases")
    console.run("document.querySelector('main').append(Object.assign(document.createElement('input'), {type: 'text'}))")
    console.run("document.querySelector('h2').setAttribute('hidden', '')")
    console.run("document.querySelector('.soft').style.color = '#cccccc'")
    rules = {line.partition(":")[0] for line in console.violations()}
    assert {"label", "color-contrast"} <= rules


def test_releases_show_what_the_manifests_say(console: Any, url: str) -> None:
    console.open()
    console.panel("releases")
    told = httpx.get(f"{url}/admin/console/releases", headers=HEADERS).json()["scenarios"]
    for scenario in told:
        rows = {row[0]: row[1:] for row in console.rows(f"[aria-labelledby=scenario-{scenario['scenario']}]")}
        assert rows["two towers"] == [one["two_tower"] for one in scenario["releases"]] or rows["two towers"] == [
            "" for _ in scenario["releases"]
        ]
        assert rows["index"] == [one["index"] for one in scenario["releases"]]
        assert rows["ads in the index"] == [f"{one['num_ads']:,}" for one in scenario["releases"]]
        assert "current" in rows["state"][0]


def test_live_figures_are_those_of_the_metrics_of_all_workers(console: Any, url: str) -> None:
    console.open()
    console.run("document.querySelector('#panels a[href=\"#live\"]').click()")
    console.wait("document.querySelectorAll('#panel-live .tile').length > 5")
    console.wait(f"performance.getEntriesByName('{url}/metrics').length > 0")
    send_some(url, 40)
    read = TILES % "live"
    console.wait(f"({read})['unknown ads'] === '16 %'")  # 8 of 50: every seventh has another name, and one is gone
    figures = console.run(read)
    assert figures["workers ready"] == "2 of 2"
    assert figures["degraded answers"] == figures["problems"] == "0 %"
    assert re.fullmatch(r"[\d.]+ ms", figures["p99 of a request"])
    rows = console.rows("#panel-live")
    assert [row[0] for row in rows] == ["decode", "query tower", "light", "heavy", "total", "shopping", "standard"]
    assert "heavy: onnxruntime_cpu" in rows[5][1]
    assert "query tower: onnxruntime_cpu" in rows[5][1]
    assert all(" ms" in row[1] for row in rows[:5])


def test_live_rests_while_the_tab_is_hidden_or_paused(console: Any) -> None:
    console.open()
    console.panel("live")
    asked = "performance.getEntriesByType('resource').filter(one => one.name.endsWith('/metrics')).length"
    console.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    before = console.run(asked)
    console.run("new Promise(done => setTimeout(done, 4500))")
    assert console.run(asked) == before
    console.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    console.wait(f"{asked} > {before}")
    console.run("[...document.querySelectorAll('#panel-live button')].find(one => one.textContent === 'Pause').click()")
    console.run("new Promise(done => setTimeout(done, 500))")
    before = console.run(asked)
    console.run("new Promise(done => setTimeout(done, 2500))")
    assert console.run(asked) == before


def test_quantiles_and_rates_are_those_of_the_formula(console: Any) -> None:
    """Prometheus's: linear inside of the bucket that the rank falls into."""
    edges, before, now = [0.001, 0.005, 0.02, "+Inf"], [3, 4, 4, 6], [13, 34, 44, 46]

    def text(counts: list[int]) -> str:
        halves = ((count // 2, count - count // 2) for count in counts)
        lines = [
            f'h_bucket{{le="{edge}",path="a\\"{name}"}} {part}'
            for edge, parts in zip(edges, halves, strict=True)
            for name, part in zip("xy", parts, strict=True)
        ]
        return "# HELP h x\n" + "\n".join([*lines, "c_total 7.0" if counts is now else "c_total 2.0", ""])

    def expected(share: float) -> float:
        grown = [after - first for after, first in zip(now, before, strict=True)]
        rank, low, under = share * grown[-1], 0.0, 0
        for edge, cumulated in zip(edges, grown, strict=True):
            if cumulated >= rank:
                return low if edge == "+Inf" else low + (edge - low) * (rank - under) / (cumulated - under)
            low, under = edge, cumulated
        raise AssertionError

    console.open()
    call = (
        "import('/console/metrics.js').then(m => { const [a, b] = [%s, %s].map(m.parse); return ["
        "[.1, .5, .9, .99, 1].map(share => m.quantile(a, b, 'h', {}, share)), m.growth(a, b, 'c_total'), "
        "m.growth(b, a, 'c_total'), m.quantile(a, a, 'h', {}, .5), m.total(b, 'h_bucket', {le: '0.001'}), "
        "m.each(b, 'h_bucket')[0].labels.path]; })"
    )
    quantiles, growth, reset, nothing, summed, label = console.run(
        call % (json.dumps(text(before)), json.dumps(text(now)))
    )
    assert quantiles == pytest.approx([expected(share) for share in (0.1, 0.5, 0.9, 0.99, 1)])
    assert (growth, reset, nothing, summed, label) == (5, None, None, 13, 'a"x')


def test_an_address_that_names_no_panel_shows_the_first(console: Any) -> None:
    console.open()
    console.run("location.hash = 'constructor'")
    console.wait("document.querySelector('#panel-releases article')")
    assert console.page.complaints() == []


def test_a_request_is_sent_as_it_was_pasted(console: Any, request_of_1000: dict[str, Any]) -> None:
    console.open()
    console.run("document.querySelector('#panels a[href=\"#playground\"]').click()")
    console.run("window.ask = fetch; window.fetch = (path, how) => ((window.sent = how.body), window.ask(path, how))")
    text = json.dumps(request_of_1000 | {"query": {"country": 12345678901234567891, "user_ctr": 0.1}})
    console.paste("playground", text)
    console.press("playground-rank")
    console.wait("document.querySelector('#ads')")
    sent = json.loads(console.run("window.sent"))
    assert sent == {"request": json.loads(text)}


@pytest.mark.parametrize("width", [PHONE, DESK], ids=["phone", "desk"])
def test_the_playground_ranks_a_thousand_candidates(
    console: Any, url: str, request_of_1000: dict[str, Any], width: int
) -> None:
    told = ranked(url, request_of_1000 | {"event_time": "2026-03-01T12:00:00Z"})["serving"]["answer"]
    console.open(width=width)
    console.run("document.querySelector('#panels a[href=\"#playground\"]').click()")
    console.paste("playground", json.dumps(request_of_1000 | {"event_time": "2026-03-01T12:00:00Z"}))
    console.press("playground-rank")
    console.wait("document.querySelector('#ads tbody tr')")
    steps = console.run(STEPS)
    counts = told["explain"]["counts"]
    assert steps == [1000, counts["ranked"], 100, 100, 100]
    reasons = console.run("document.querySelector('.funnel').textContent")
    for reason, words in (
        ("unknown", "unknown to the index"),
        ("duplicate", "listed twice"),
        ("scenario", "of another"),
    ):
        assert f"{len(told['dropped'][reason])} {words}" in reasons
    assert [row[0] for row in console.rows("#ads")] == told["ads"]["ids"]  # the first hundred, in final order
    row = console.rows("#ads")[0]
    assert (row[1], row[3]) == ("final", "1")
    light = told["explain"]["light_ranks"][0]
    moved = light - 1
    assert (row[2], row[4]) == (str(light), "=" if moved == 0 else f"{'up' if moved > 0 else 'down'} {abs(moved)}")
    assert float(row[5]) == pytest.approx(told["ads"]["utilities"][0], rel=1e-2)
    console.run("document.querySelectorAll('#ads thead button')[6].click()")  # light utility, the highest first
    traced = told["explain"]["candidates"]
    best = sorted(filter(None, traced["light_utilities"]), reverse=True)[:100]
    assert [float(row[6]) for row in console.rows("#ads")] == pytest.approx(best, rel=1e-2)
    console.run("[...document.querySelectorAll('#ads button')].at(-1).click()")
    assert len(console.rows("#ads")) == 200
    assert console.overflow() <= 0
    assert console.page.complaints() == []
    assert console.violations() == []


def test_ads_are_found_by_id_and_by_stage_and_their_texts_never_run(
    console: Any, request_of_1000: dict[str, Any]
) -> None:
    console.open()
    console.run("document.querySelector('#panels a[href=\"#playground\"]').click()")
    console.paste("playground", json.dumps(request_of_1000))
    console.press("playground-rank")
    console.wait("document.querySelector('#ads tbody tr')")
    console.run(FIND % "<IMG")
    assert console.rows("#ads")[0][:2] == [ATTACK, "dropped"]
    console.run("document.querySelector('#ads .opens').click()")
    assert "unknown" in console.rows("#ads")[1][0]
    console.run(FIND % "")
    console.run(
        "(() => { const field = document.querySelector('#ads select'); field.value = 'dropped';"
        "field.dispatchEvent(new Event('change')); })()"
    )
    assert {row[1] for row in console.rows("#ads")} == {"dropped"}
    assert console.run("window.attacked") is None
    console.paste("playground", "{no json")
    console.press("playground-rank")
    console.wait("document.querySelector('#panel-playground .fault')?.textContent.includes('not JSON')")
    console.paste("playground", json.dumps(request_of_1000 | {"survivors": 0}))
    console.press("playground-rank")
    console.wait("document.querySelector('#panel-playground .fault')?.textContent.startsWith('request.survivors: ')")


def test_texts_of_a_request_are_shown_as_they_are_and_never_run(console: Any, example_query: Any) -> None:
    """Ids, names and values of features, and what an error repeats of them."""
    query = example_query(2) | {"country": ATTACK, ATTACK: ATTACK, "watch": {"ad": [ATTACK], "time": [0], ATTACK: [1]}}
    request = {"request_id": ATTACK, "scenario": "standard", "query": query, "candidates": [ATTACK, "standard-1"]}
    console.open()
    console.run("document.querySelector('#panels a[href=\"#playground\"]').click()")
    console.paste("playground", json.dumps(request))
    console.press("playground-rank")
    console.wait("document.querySelector('#ads tbody tr')")
    console.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    console.run("document.querySelectorAll('#ads .opens').forEach(press => press.click())")
    shown = console.run("document.getElementById('panel-playground').innerText")
    assert shown.count(ATTACK) >= 4
    for wrong in ({"scenario": ATTACK}, {"candidates": {"ids": ["standard-1"], ATTACK: 1}}, {ATTACK: 1}):
        console.paste("playground", json.dumps(request | wrong))
        console.press("playground-rank")
        console.wait("document.querySelector('#panel-playground .fault')?.innerText.includes('<img')")
    assert console.run("document.querySelectorAll('#panel-playground img').length") == 0
    assert console.run("window.attacked") is None
    assert console.overflow() <= 0


def test_the_playground_ranks_ten_thousand_candidates(console: Any, request_of_1000: dict[str, Any]) -> None:
    """The first thousand are told of one by one."""
    console.open(width=PHONE)
    console.run("document.querySelector('#panels a[href=\"#playground\"]').click()")
    ids = [f"standard-{i}" for i in range(1, 10_001)]
    console.paste("playground", json.dumps(request_of_1000 | {"candidates": ids}))
    console.press("playground-rank")
    console.wait("document.querySelector('#ads tbody tr')")
    assert console.run(STEPS)[0] == 10_000
    assert "9,000 more candidates" in console.run("document.querySelector('#ads .warning').textContent")
    assert console.overflow() <= 0
    assert console.page.complaints() == []


@pytest.mark.parametrize("way", ["/console/", "/console/index.html"])
def test_every_way_in_shows_the_page(console: Any, url: str, way: str) -> None:
    console.open()
    console.page.open(f"{url}{way}#live")
    console.wait("document.querySelector('#panel-live .tile')")
    assert console.run("location.pathname + location.hash") == "/console#live"
    assert console.page.complaints() == []


def test_an_ad_opens_the_features_that_the_heavy_ranker_got(console: Any, url: str) -> None:
    saved = httpx.get(f"{url}/admin/console/requests/shopping/2", headers=HEADERS).json()
    told = ranked(url, saved)["serving"]["answer"]
    console.open()
    console.run("document.querySelector('#panels a[href=\"#playground\"]').click()")
    console.paste("playground", json.dumps(saved))
    console.press("playground-rank")
    console.wait("document.querySelector('#ads tbody tr')")
    console.run("document.querySelector('#ads .opens').focus()")
    console.page.press("Enter", "\r")
    console.wait("document.querySelector('#ads .detail')")
    shown = console.run(
        "Object.fromEntries([...document.querySelectorAll('#ads .detail .features > div')].map("
        "one => [one.children[0].textContent, one.children[1].textContent]))"
    )
    report = next(iter(told["explain"]["ads"].values()))
    assert shown["ad_key"] == ", ".join(map(str, report["encoded"]["ad_key"][0]))
    assert float(shown["affinity"]) == pytest.approx(report["pair"]["affinity"][0][0])
    sent = console.rows("#panel-playground details .scroll")
    assert {row[0] for row in sent} >= {"country", "user_ctr", "watch.ad", "watch.time"}
    assert console.run("document.activeElement.getAttribute('aria-expanded')") == "true"


def test_a_request_without_candidates_shows_what_was_retrieved(console: Any, url: str) -> None:
    request = {"scenario": "standard", "query": {}, "survivors": 20, "limit": 7, "stage": "light"}
    counts = ranked(url, request)["serving"]["answer"]["explain"]["counts"]
    console.open()
    console.run("document.querySelector('#panels a[href=\"#playground\"]').click()")
    console.paste("playground", json.dumps(request))
    console.press("playground-rank")
    console.wait("document.querySelector('#ads tbody tr')")
    assert console.run(STEPS) == [counts["candidates"], counts["ranked"], 20, 0, 7]
    said = console.run("document.querySelector('.funnel').textContent")
    assert said.startswith("retrieved")
    assert "not asked for" in said
    assert "13 beyond the limit" in said


def test_two_releases_are_compared_on_one_request(console: Any, url: str, world: Any) -> None:
    current, earlier = world.names("shopping")
    saved = httpx.get(f"{url}/admin/console/requests/shopping/1", headers=HEADERS).json()
    saved["candidates"] = [f"shopping-{i}" for i in range(1, 40)]
    told = ranked(url, saved, earlier)
    console.open()
    console.run("document.querySelector('#panels a[href=\"#compare\"]').click()")
    console.paste("compare", json.dumps(saved))
    assert console.run("[...document.getElementById('compare-with').options].map(one => one.value)") == [earlier]
    console.press("compare-go")
    console.wait("document.querySelector('#panel-compare .data-table tbody tr')")
    rows = console.rows("#panel-compare .data-table")
    first, second = (told[key]["answer"] for key in ("serving", "against"))
    assert [row[0] for row in rows] == first["ads"]["ids"]
    lights = dict(zip(second["ads"]["ids"], second["explain"]["light_ranks"], strict=True))
    assert [row[5] for row in rows] == [str(lights[row[0]]) for row in rows]
    tiles = console.run(TILES % "compare")
    assert (tiles["serves"], tiles["compared with"]) == (current, earlier)

    def light_first(answer: Any) -> set[str]:
        traced = answer["explain"]["candidates"]
        return {ad for ad, rank in zip(traced["ids"], traced["light_ranks"], strict=True) if rank and rank <= 10}

    share = len(light_first(first) & light_first(second)) / 10
    assert tiles["shared of the light first 10"] == f"{100 * share:.0f} %"
    gaps = [abs(a - b) for a, b in zip(*(by_id(answer, "light", "click") for answer in (first, second)), strict=True)]
    assert float(tiles["light p(click) differs by"]) == pytest.approx(sum(gaps) / len(gaps), rel=0.06)


def by_id(answer: Any, ranker: str, task: str) -> list[float]:
    return [value for _, value in sorted(zip(answer["ads"]["ids"], answer["ads"][ranker][task], strict=True))]


@pytest.mark.parametrize("width", [PHONE, DESK], ids=["phone", "desk"])
def test_a_rollback_is_asked_for_by_name_and_done_by_keyboard(console: Any, url: str, world: Any, width: int) -> None:
    current, earlier = world.names("shopping")
    console.open(width=width)
    console.panel("releases")
    console.run(f"({ROLLBACK}).focus()")
    console.page.press("Enter", "\r")
    console.wait("document.querySelector('dialog[open]')")
    said = console.run("document.querySelector('dialog').textContent")
    assert said.index(current) < said.index(earlier)
    assert console.violations() == []
    assert console.overflow() <= 0
    stops = [console.focused()]
    for _ in range(3):
        console.page.press("Tab")
        stops.append(console.focused())
    assert stops == ["Cancel", "Roll back", "Cancel", "Roll back"]
    console.run("document.querySelector('dialog').close()")
    console.wait(f"document.activeElement === {ROLLBACK}")
    assert world.current("shopping").release_id == current
    console.page.press("Enter", "\r")
    console.wait("document.querySelector('dialog[open]')")
    console.page.press("Tab")
    console.page.press("Enter", "\r")
    console.wait("document.querySelector('dialog .done')")
    assert earlier in console.run("document.querySelector('dialog .done').textContent")
    assert world.current("shopping").release_id == earlier
    console.page.press("Enter", "\r")  # Close has the focus
    console.wait("!document.querySelector('dialog')")
    console.wait(
        "document.querySelector('[aria-labelledby=scenario-shopping]').textContent.includes('There is no earlier')"
    )
    assert console.page.complaints() == []
    world.rollback("shopping", to=current)
    helpers.wait(lambda: httpx.get(f"{url}/health/ready").json()["serving"]["shopping"] == current)


def test_a_rollback_that_somebody_else_did_meanwhile_moves_nothing(console: Any, url: str, world: Any) -> None:
    current, earlier = world.names("shopping")
    console.open()
    console.panel("releases")
    console.run(f"{ROLLBACK}.click()")
    world.rollback("shopping")
    console.run("[...document.querySelectorAll('dialog button')].at(-1).click()")
    console.wait("document.querySelector('dialog .fault')")
    assert "Nothing was moved" in console.run("document.querySelector('dialog .fault').textContent")
    assert world.current("shopping").release_id == earlier
    world.rollback("shopping", to=current)
    helpers.wait(lambda: httpx.get(f"{url}/health/ready").json()["serving"]["shopping"] == current)
    console.run("document.querySelector('dialog').close()")


def test_everything_is_reached_by_the_tab_key_in_the_order_of_the_page(console: Any) -> None:
    console.open()
    console.panel("playground")
    console.run("document.querySelector('.skip').focus()")
    reached = [console.run(FOCUS)]
    for _ in range(13):
        console.page.press("Tab")
        reached.append(console.run(FOCUS))
    names = [name for name, _ in reached]
    assert names[:6] == ["A", "A", "A", "A", "A", "BUTTON"]  # skip, panels, sign out
    assert names[6:9] == ["SELECT", "SUMMARY", "BUTTON"]
    assert all(outline != "none" for _, outline in reached)


def test_without_a_token_it_opens_on_this_machine_and_cannot_roll_back(console: Any, world: Any) -> None:
    engines = {"query_engine": "onnxruntime_cpu", "heavy_engine": "onnxruntime_cpu", "engine_threads": "1"}
    with helpers.service_process(world.root, **engines) as url:
        open_to_all = helpers.ConsoleBrowser(console.page, url)
        open_to_all.open(token=None, signed_out=False)
        open_to_all.panel("releases")
        assert not open_to_all.run("[...document.querySelectorAll('[data-key]')].some(press => !press.disabled)")
        assert "ADSIEVE_ADMIN_TOKEN" in open_to_all.run("document.getElementById('why-shopping').textContent")
        open_to_all.panel("playground")
        assert open_to_all.page.complaints() == []
        assert open_to_all.run("document.getElementById('sign-out').hidden")
