"""The live page, its events, and both in a browser."""

import asyncio
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglk.models.byte_level import EOS_ID
from sglk.server import live_feed
from sglk.server.app import create_app
from sglk.server.http_server import HttpServer
from sglk.server.live_feed import LiveFeed
from sglk.server.live_snapshot import take_snapshot
from sglk.server.port import bind, url_of
from sglk.testing.scripted import ScriptedRunner
from tests.server import chromium
from tests.server.serving import Served, deploy, serving, wait_until

BODY = {"prompt": "hello hello", "max_tokens": 8, "ignore_eos": True}


def two_groups() -> dict[str, ScriptedRunner]:
    return {name: ScriptedRunner(eos_token_ids=frozenset({EOS_ID})) for name in ("old", "new")}


@pytest.fixture
def pair() -> Iterator[Served]:
    with serving(two_groups(), weights={"old": 80, "new": 20}) as served:
        yield served


def first_events(served: Served, count: int, **headers: str) -> list[Any]:
    """Return the first `count` events that a viewer gets."""
    with served.client.stream("GET", "/dashboard/events", headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in response.iter_lines() if line)
        return [json.loads(next(lines).removeprefix("data: ")) for _ in range(count)]


def test_the_page_needs_nothing_from_elsewhere(pair: Served) -> None:
    response = pair.get("/dashboard")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"(src|href)=\"(?!data:)", response.text)
    assert "http" not in re.sub(r"\$\{[^}]*\}", "", response.text.replace("HTTP", ""))
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


def test_a_viewer_first_gets_what_was_and_then_what_is_new(pair: Served) -> None:
    for _ in range(10):
        pair.post("/v1/completions", BODY)
    first, second = first_events(pair, 2)
    assert (first["first"], second["first"]) == (True, False)
    assert second["points"][0]["t"] > first["points"][-1]["t"]
    again = first_events(pair, 1)[0]
    assert len(again["points"]) >= 2, "a new viewer sees what was before it came"
    groups = {group["name"]: group for group in first["now"]["groups"]}
    assert [groups[name]["replicas"][0]["picks"] for name in ("old", "new")] == [8, 2]
    assert groups["old"]["recent"]["ttft_p99"] > 0
    assert first["now"]["weights"]["percent"] == {"old": 80.0, "new": 20.0}
    requests = first["now"]["requests"]
    assert requests["received"] == requests["completed"] == 10


def test_the_hit_rate_is_that_of_the_last_minute(pair: Served) -> None:
    pair.deployment.fleet.router.set_weights({"old": 1, "new": 0}, "admin")
    first_events(pair, 1)
    pair.post("/v1/completions", BODY)
    pair.post("/v1/completions", BODY)
    old, new = first_events(pair, 2)[1]["now"]["groups"]
    # 11 tokens, then 10 of the same 11 from the cache.
    assert old["hit_rate"] == pytest.approx(10 / 22, abs=1e-4)
    assert new["hit_rate"] is None


def test_warnings_of_the_log_are_shown_without_a_look_at_the_log(pair: Served) -> None:
    first_events(pair, 1)
    pair.post("/admin/groups/new/drain", headers={"x-request-id": "mine"})
    errors = first_events(pair, 2)[1]["now"]["errors"]
    drained = next(entry for entry in errors if entry["message"].startswith("group new is draining"))
    assert (drained["level"], drained["request_id"]) == ("warning", "mine")


@pytest.mark.parametrize(
    ("server", "admitted", "refused"),
    [
        ({"api_key": "api", "admin_api_key": "adm"}, ["api", "adm"], [None, "x"]),
        ({"api_key": "api"}, ["api"], [None, "x"]),
        ({"admin_api_key": "adm"}, [None, "x", "adm"], []),
        ({}, [None], []),
    ],
)
def test_who_may_use_the_api_or_administer_may_look(
    server: dict[str, str], admitted: list[str | None], refused: list[str | None]
) -> None:
    with serving(server=server) as served:
        assert served.get("/dashboard").status_code == 200
        for key in admitted:
            first_events(served, 1, **({"Authorization": f"Bearer {key}"} if key else {}))
        for key in refused:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            assert served.client.get("/dashboard/events", headers=headers).status_code == 401


def test_a_viewer_that_leaves_is_let_go(pair: Served) -> None:
    feed = pair.deployment.feed
    with pair.client.stream("GET", "/dashboard/events") as response:
        lines = response.iter_lines()
        next(lines)
        assert feed.viewers == 1
    wait_until(lambda: feed.viewers == 0)


def served_until_signal(deployment: Any, then: Any) -> float:
    """Serve `deployment` until `then(url)` has run and a signal has come; return how long the end took."""
    began: list[float] = []
    with bind("127.0.0.1", 0) as listener:
        url = url_of(listener)

        def visit() -> None:
            then(url)
            began.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

        visitor = threading.Thread(target=visit)
        HttpServer(create_app(deployment), deployment, visitor.start).run_until_stopped(listener)
        visitor.join()
    return time.monotonic() - began[0]


def test_viewers_get_a_last_word_and_keep_no_shutdown_waiting() -> None:
    deployment, heard = deploy(ScriptedRunner(), server={"shutdown_timeout_s": 600}), []
    seen = threading.Event()

    def look(url: str) -> None:
        with httpx.stream("GET", f"{url}/dashboard/events", timeout=120, trust_env=False) as response:
            for line in response.iter_lines():
                heard.append(line)
                seen.set()

    lookers: list[threading.Thread] = []

    def visit(url: str) -> None:
        lookers.append(threading.Thread(target=look, args=(url,)))
        lookers[0].start()
        assert seen.wait(120)

    assert served_until_signal(deployment, visit) < 600
    lookers[0].join(120)
    assert [line for line in heard if line][-1] == 'data: {"closing":true}'


def test_a_viewer_that_does_not_read_keeps_no_shutdown_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment, viewers = deploy(ScriptedRunner(), server={"shutdown_timeout_s": 600}), []
    deployment.feed = LiveFeed(every_s=0.001)
    monkeypatch.setattr("sglk.server.dashboard.take_snapshot", lambda _: ({"much": "x" * 1_000_000}, {}))

    def visit(url: str) -> None:
        viewer = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        viewers.append(viewer)
        viewer.sendall(b"GET /dashboard/events HTTP/1.1\r\nHost: x\r\n\r\n")
        # So many have been taken that the buffers between here and there must be full.
        wait_until(lambda: len(deployment.feed.points) >= 100)

    assert served_until_signal(deployment, visit) < 600
    viewers[0].close()


def test_a_thousand_viewers_cost_no_more_writing_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write(value: Any) -> bytes:
        written.append(json.dumps(value).encode())
        return written[-1]

    monkeypatch.setattr(live_feed, "event", write)

    async def look() -> list[bytes]:
        feed = LiveFeed(every_s=3600)
        feed.start(lambda: ({"running": 3}, {"t": 0}))
        events = [feed.events() for _ in range(1000)]
        first = await asyncio.gather(*(anext(each) for each in events))
        feed.close()
        return first

    told = asyncio.run(look())
    assert len(told) == 1000
    assert {json.loads(each)["now"]["running"] for each in told} == {3}
    assert len(written) == 1


def test_a_snapshot_that_fails_is_no_end_of_the_feed(pair: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = iter([ZeroDivisionError, None])

    def take(_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        if next(snapshots, None) is not None:
            raise ZeroDivisionError
        return {"well": True}, {}

    monkeypatch.setattr("sglk.server.dashboard.take_snapshot", take)
    assert first_events(pair, 1)[0]["now"] == {"well": True}
    (entry,) = pair.deployment.feed.journal.entries()
    assert entry["message"].startswith("no snapshot for the dashboard")


in_a_browser = pytest.mark.skipif(chromium.PATH is None, reason="no Chromium is installed")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[chromium.Page]:
    with chromium.chromium(tmp_path / "profile") as opened:
        yield opened


def on_load(page: chromium.Page, served: Served) -> None:
    page.open(f"{served.url}/dashboard")
    page.wait("document.getElementById('link')?.textContent === 'live'")


def type_weight(page: chromium.Page, group: str, weight: str) -> None:
    page.look(
        f"(() => {{ const input = document.querySelector(`input[aria-label='weight of {group}']`);"
        f" input.value = {weight!r}; input.dispatchEvent(new Event('input')); }})()"
    )


def click(page: chromium.Page, selector: str) -> None:
    page.wait(f"document.querySelector({selector!r})?.disabled === false")
    page.look(f"document.querySelector({selector!r}).click()")


def use_key(page: chromium.Page, key: str) -> None:
    page.look(
        f"(() => {{ document.getElementById('key').value = {key!r};"
        " document.getElementById('key-form').requestSubmit(); })()"
    )


def said(page: chromium.Page) -> str:
    return str(page.look("document.getElementById('say').textContent"))


@in_a_browser
@pytest.mark.slow
def test_in_a_browser_the_page_shows_both_groups_and_moves_traffic(pair: Served, page: chromium.Page) -> None:
    for _ in range(10):
        pair.post("/v1/completions", BODY)
    on_load(page, pair)
    names = "[...document.querySelectorAll('#groups tbody b')].map(each => each.textContent)"
    assert page.look(names) == ["old", "new"]
    page.wait("document.querySelectorAll('[data-chart=running] path[d^=M]').length === 2")

    type_weight(page, "old", "30")
    type_weight(page, "new", "70")
    click(page, "#apply")
    wait_until(lambda: dict(pair.deployment.fleet.router.weights.shares) == {"old": 30, "new": 70})
    page.wait("document.getElementById('say').textContent === 'traffic: old 30 %, new 70 %'")
    assert page.look("[...document.querySelectorAll('#groups input')].map(each => each.value)") == ["30", "70"]

    click(page, "#rollback")
    wait_until(lambda: dict(pair.deployment.fleet.router.weights.shares) == {"old": 80, "new": 20})
    click(page, "[data-drain=new]")
    wait_until(lambda: pair.deployment.fleet.router.groups["new"].state == "drained")
    page.wait("document.querySelector('[data-drain=new]').textContent === 'Undrain'")
    click(page, "[data-drain=new]")
    wait_until(lambda: pair.deployment.fleet.router.groups["new"].state == "serving")
    assert page.complaints == []


@in_a_browser
@pytest.mark.slow
def test_in_a_browser_bad_weights_are_refused_in_words(pair: Served, page: chromium.Page) -> None:
    on_load(page, pair)
    type_weight(page, "old", "0")
    type_weight(page, "new", "0")
    click(page, "#apply")
    page.wait("document.getElementById('say').className === 'bad'")
    assert "all weights would be 0" in said(page)
    type_weight(page, "new", "-1")
    click(page, "#apply")
    page.wait("document.getElementById('say').textContent.includes('not a number from 0 up')")
    click(page, "#reset")
    assert page.look("[...document.querySelectorAll('#groups input')].map(each => each.value)") == ["80", "20"]
    assert dict(pair.deployment.fleet.router.weights.shares) == {"old": 80, "new": 20}


@in_a_browser
@pytest.mark.slow
def test_in_a_browser_weights_that_others_set_while_one_types_are_not_overwritten(
    pair: Served, page: chromium.Page
) -> None:
    on_load(page, pair)
    type_weight(page, "new", "70")
    pair.deployment.fleet.router.set_weights({"old": 5}, "admin")
    page.wait("document.querySelector(`input[aria-label='weight of old']`).value === '5'")
    click(page, "#apply")
    page.wait("document.getElementById('say').className === 'bad'")
    assert "weights 1, by admin, have come into force since weights 0" in said(page)
    assert dict(pair.deployment.fleet.router.weights.shares) == {"old": 5, "new": 20}
    click(page, "#apply")
    wait_until(lambda: dict(pair.deployment.fleet.router.weights.shares) == {"old": 5, "new": 70})


@in_a_browser
@pytest.mark.slow
def test_in_a_browser_a_server_may_come_back_with_other_groups(
    pair: Served, page: chromium.Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"one": ScriptedRunner(), "two": ScriptedRunner(), "three": ScriptedRunner()}) as other:
        shown = [pair.deployment]
        monkeypatch.setattr("sglk.server.dashboard.take_snapshot", lambda _: take_snapshot(shown[0]))
        on_load(page, pair)
        type_weight(page, "new", "70")
        names = "[...document.querySelectorAll('#groups tbody b')].map(each => each.textContent)"
        for deployment, expected in ((other.deployment, ["one", "two", "three"]), (pair.deployment, ["old", "new"])):
            shown[0] = deployment
            page.wait(f"JSON.stringify({names}) === {json.dumps(json.dumps(expected, separators=(',', ':')))}")
            assert page.look("document.querySelectorAll('#replicas tbody tr').length") == len(expected)
            assert page.look("document.querySelectorAll('[data-chart=running] path').length") == len(expected)
        assert page.look("document.getElementById('apply').disabled")
        assert page.complaints == []


@in_a_browser
@pytest.mark.slow
def test_in_a_browser_keys_are_asked_for_and_stay_out_of_urls(tmp_path: Path) -> None:
    keys = {"api_key": "look", "admin_api_key": "change"}
    with serving(two_groups(), server=keys) as served, chromium.chromium(tmp_path / "profile") as page:
        page.open(f"{served.url}/dashboard")
        page.wait("document.getElementById('link')?.textContent === 'this server wants a key'")
        use_key(page, "wrong")
        page.wait("document.getElementById('link').textContent === 'the server does not know this key'")
        use_key(page, "look")
        page.wait("document.getElementById('link').textContent === 'live'")
        type_weight(page, "new", "5")
        click(page, "#apply")
        page.wait("document.getElementById('say').textContent.includes('server.admin_api_key')")
        use_key(page, "change")
        page.wait("document.getElementById('link').textContent === 'live'")
        click(page, "#apply")
        wait_until(lambda: served.deployment.fleet.router.weights.shares["new"] == 5)
        assert "change" not in str(page.look("location.href + document.cookie + JSON.stringify(localStorage)"))
        assert page.look("document.getElementById('key').value") == ""


@in_a_browser
@pytest.mark.slow
def test_in_a_browser_a_refusal_is_shown_in_the_servers_words(pair: Served, page: chromium.Page) -> None:
    page.open(f"{pair.url.replace('127.0.0.1', chromium.FOREIGN_NAME)}/dashboard")
    page.wait("document.getElementById('link')?.textContent.endsWith('; trying again')")
    link = page.look("document.getElementById('link').textContent")
    assert link.startswith(f"a browser asked this server for '{chromium.FOREIGN_NAME}:")
    assert "list the site in server.cors_origins; trying again" in link
    page.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=True)
    assert page.look("document.documentElement.scrollWidth <= innerWidth")


@in_a_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_in_a_browser_it_fits_the_width_and_does_not_jump(pair: Served, page: chromium.Page, width: int) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600)
    on_load(page, pair)
    height = "document.documentElement.scrollHeight"
    # Advice comes once, when the first answer is there.
    page.wait("!document.getElementById('advice').hidden")
    before = page.look(height)
    for _ in range(20):
        pair.post("/v1/completions", BODY)
    page.wait("[...document.querySelectorAll('#tiles dd')].some(each => each.textContent === '20')")
    assert page.look(height) == before
    assert page.look("document.documentElement.scrollWidth") <= width
