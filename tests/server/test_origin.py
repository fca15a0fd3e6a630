"""What a page of another site can make a reader's browser send to a server without a key."""

from collections.abc import Iterator

import pytest

from tests.server.serving import Served, error_of, serving


@pytest.fixture(scope="module")
def allowing() -> Iterator[Served]:
    """A server that one site may call."""
    with serving(server={"cors_origins": ["https://chat.example.com"]}) as served:
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
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "gpu-box:8000"):
        assert served.client.get(path, headers={**BROWSER, "host": host}).status_code == 200, host
    assert served.client.get(path, headers={"host": "api.example"}).status_code == 200, "through a proxy"
    assert served.client.get("/dashboard", headers=foreign).status_code == 200


def test_a_server_that_others_reach_has_any_name(allowing: Served) -> None:
    headers = {**BROWSER, "host": "chat.example.com"}
    assert allowing.client.get("/v1/models", headers=headers).status_code == 200, "the listed site's own name"
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
