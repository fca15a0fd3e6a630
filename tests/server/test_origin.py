"""What a page of another site can make a reader's browser send to a server without a key."""

from collections.abc import Iterator

import pytest

from tests.server.serving import Served, error_of, serving


@pytest.fixture(scope="module")
def allowing() -> Iterator[Served]:
    """A server that two sites may call."""
    with serving(server={"cors_origins": ["https://chat.example.com", "https://docs.example.com:8443"]}) as served:
        yield served


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://evil.example:8000"])
@pytest.mark.parametrize("path", ["/admin/groups/left/drain", "/flush_cache", "/v1/completions"])
def test_a_page_of_another_site_is_refused(served: Served, origin: str, path: str) -> None:
    headers = {"origin": origin, "content-type": "text/plain"}
    error = error_of(served.client.post(path, content='{"force": true, "prompt": "x"}', headers=headers), 403)
    assert error["code"] == "foreign_origin"
    assert served.deployment.fleet.router.groups["left"].state == "serving"


def test_an_image_of_another_site_empties_no_cache(served: Served) -> None:
    error_of(served.client.get("/flush_cache", headers={"sec-fetch-site": "cross-site"}), 403)
    assert served.client.get("/flush_cache", headers={"sec-fetch-site": "none"}).status_code == 200


def test_a_name_that_points_here_is_not_this_server(served: Served) -> None:
    headers = {"origin": "http://evil.example:8000", "host": "evil.example:8000"}
    error_of(served.client.post("/flush_cache", headers=headers), 403)


BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"}


@pytest.mark.parametrize("path", ["/v1/models", "/server_info", "/admin/groups", "/metrics", "/flush_cache"])
def test_a_page_reads_nothing_by_a_name_that_was_pointed_here(served: Served, path: str) -> None:
    """A browser sends no origin where a page reads from what is its own site by name."""
    foreign = {**BROWSER, "host": "evil.example:8000"}
    assert error_of(served.client.get(path, headers=foreign), 403)["code"] == "foreign_origin"
    error_of(served.client.get(path, headers={**foreign, "authorization": "Bearer made-up"}), 403)
    for host in ("localhost:8000", "localhost.", "sglk.localhost:80", "127.0.0.1", "[::1]:8000", "gpu-box:8000"):
        assert served.client.get(path, headers={**BROWSER, "host": host}).status_code == 200, host
    assert served.client.get(path, headers={"host": "api.example"}).status_code == 200, "through a proxy"
    assert served.client.get("/dashboard", headers=foreign).status_code == 200


@pytest.mark.parametrize(
    "kept", [{"accept-language": "x"}, {"origin": "http://evil.example:8000"}, {"sec-fetch-mode": "cors"}]
)
def test_a_page_that_hides_its_browser_is_one_all_the_same(served: Served, kept: dict[str, str]) -> None:
    """A page chooses the user agent, and sends any key; it can drop no header that its browser adds."""
    foreign = {"user-agent": "x", "host": "evil.example:8000", "authorization": "Bearer made-up", **kept}
    refusal = error_of(served.client.get("/v1/models", headers=foreign), 403)
    assert refusal["code"] == "foreign_origin"
    assert "'evil.example:8000'" in refusal["message"]
    error_of(served.client.patch("/admin/groups/weights", json={"left": 0.5}, headers=foreign), 403)


def test_a_key_can_be_typed_under_any_name() -> None:
    """The dashboard asks for one where the server says 401."""
    foreign = {**BROWSER, "host": "chat.example.com"}
    with serving(server={"api_key": "k"}) as served:
        assert served.client.get("/dashboard", headers=foreign).status_code == 200
        error_of(served.client.get("/dashboard/events", headers=foreign), 401)
        sent = {**foreign, "origin": "http://chat.example.com"}
        error_of(served.client.post("/admin/groups/left/drain", headers=sent), 401)
        made_up = {**foreign, "authorization": "Bearer made-up"}
        assert error_of(served.client.get("/metrics", headers=made_up), 403)["code"] == "foreign_origin", "open to all"
    with serving(server={"admin_api_key": "k"}) as served:
        error_of(served.client.get("/admin/groups", headers=foreign), 401)
        error_of(served.client.get("/v1/models", headers={**foreign, "authorization": "Bearer k"}), 403)


def test_a_server_that_others_reach_has_any_name(allowing: Served) -> None:
    headers = {**BROWSER, "host": "chat.example.com"}
    for host in ("chat.example.com", "chat.example.com:8443", "docs.example.com"):
        named = {**headers, "host": host}
        assert allowing.client.get("/v1/models", headers=named).status_code == 200, "the listed site's own name"
    with serving(server={"api_key": "k"}) as served:
        known = {**headers, "authorization": "Bearer k"}
        assert served.client.get("/v1/models", headers=known).status_code == 200, "who has the key"
        error_of(served.client.get("/v1/models", headers={**headers, "authorization": "Bearer x"}), 401)
    with serving(server={"host": "0.0.0.0", "api_key": "k"}) as served:
        assert served.client.get("/metrics", headers=headers).status_code == 200


def test_the_servers_own_pages_and_other_clients_are_served(served: Served) -> None:
    assert served.client.post("/flush_cache", headers={"origin": served.url}).status_code == 200
    assert served.client.post("/flush_cache").status_code == 200
    assert served.client.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 200


def test_without_listed_sites_no_page_may_read_an_answer(served: Served) -> None:
    answer = served.client.get("/v1/models", headers={"origin": "https://chat.example.com"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert served.client.options("/v1/completions", headers=preflight).status_code == 405


def test_a_listed_site_may_call(allowing: Served) -> None:
    origin = {"origin": "https://chat.example.com"}
    answer = allowing.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=origin)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://chat.example.com"
    preflight = {
        **origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    assert allowing.client.options("/v1/completions", headers=preflight).status_code == 200
    other = {**preflight, "origin": "https://evil.example"}
    assert allowing.client.options("/v1/completions", headers=other).status_code == 400


def test_a_key_is_proof_enough() -> None:
    with serving(server={"api_key": "k"}) as served:
        headers = {"origin": "https://evil.example", "authorization": "Bearer k"}
        assert served.client.post("/flush_cache", headers=headers).status_code == 200
        error_of(served.client.post("/flush_cache", headers={**headers, "authorization": "Bearer wrong"}), 401)
