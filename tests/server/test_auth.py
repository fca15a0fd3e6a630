from collections.abc import Iterator

import pytest

from tests.server.serving import Served, error_of, serving


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with serving(server={"api_key": "user-key", "admin_api_key": "admin-key"}) as served:
        yield served


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), {"Authorization": "Bearer"}, {"Authorization": "user-key"}, bearer("admin-key")]
)
@pytest.mark.parametrize("path", ["/v1/models", "/server_info", "/docs", "/nothing"])
def test_a_wrong_key_is_refused(locked: Served, path: str, headers: dict[str, str]) -> None:
    response = locked.client.get(path, headers=headers)

    assert error_of(response, 401)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


def test_the_right_key_opens_the_api(locked: Served) -> None:
    assert locked.client.get("/v1/models", headers=bearer("user-key")).status_code == 200
    assert locked.post("/generate", {"text": "x"}, headers=bearer("user-key")).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/metrics"])
def test_probes_need_no_key(locked: Served, path: str) -> None:
    assert locked.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache", "/admin/runtime"])
def test_admin_routes_take_the_admin_key_alone(locked: Served, path: str) -> None:
    refused = error_of(locked.client.post(path, headers=bearer("user-key"), json={}), 401)
    assert refused["message"].endswith("with the server's key (server.admin_api_key)")

    assert locked.client.post(path, headers=bearer("admin-key"), json={}).status_code == 200


def test_the_api_key_guards_admin_routes_where_there_is_no_other() -> None:
    with serving(server={"api_key": "user-key"}) as served:
        refused = error_of(served.client.post("/flush_cache"), 401)
        assert refused["message"].endswith("with the server's key (server.api_key)")
        assert served.client.post("/flush_cache", headers=bearer("user-key")).status_code == 200


def test_a_refusal_names_every_key_that_would_do(locked: Served) -> None:
    for path, names in {
        "/v1/models": "server.api_key",
        "/dashboard/events": "server.admin_api_key or server.api_key",
    }.items():
        refused = error_of(locked.client.get(path, headers=bearer("wrong")), 401)
        assert refused["message"].endswith(f"with the server's key ({names})")


def test_an_admin_key_alone_leaves_the_api_open() -> None:
    with serving(server={"admin_api_key": "admin-key"}) as served:
        assert served.get("/v1/models").status_code == 200
        error_of(served.client.post("/flush_cache"), 401)


def test_a_key_that_is_not_ascii_works() -> None:
    with serving(server={"api_key": "schlüssel"}) as served:
        headers = {b"Authorization": "Bearer schlüssel".encode()}
        assert served.client.get("/v1/models", headers=headers).status_code == 200


def test_no_route_and_no_log_line_says_a_key(locked: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    for path in locked.client.get("/openapi.json", headers=bearer("user-key")).json()["paths"]:
        if path == "/dashboard/events":  # does not end
            continue
        for key in ("user-key", "admin-key", "wrong-key"):
            text = locked.client.get(path.replace("{name}", "left"), headers=bearer(key)).text
            assert not [secret for secret in ("user-key", "admin-key", "wrong-key") if secret in text], path
    assert not [secret for secret in ("user-key", "admin-key", "wrong-key") if secret in caplog.text]
