"""A server that other machines reach: its admin routes, its certificate, and what it says of them."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from sglk.config.compose import compose
from sglk.config.schema import ServerConfig
from sglk.errors import ConfigError
from sglk.server.announcement import exposure, open_secrets
from sglk.server.port import is_loopback
from sglk.server.tls import tls_files
from sglk.testing.tiny import write_tiny_model
from tests.server.process import Process
from tests.server.serving import ENDLESS, Served, error_of, patient_runner, serving, wait_until

NATIVE_ENDLESS = {"text": "x", "sampling_params": {"max_new_tokens": 900_000, "ignore_eos": True}}


def certificate(folder: Path, name: str = "server") -> tuple[str, str]:
    """Make a self-signed certificate for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *subject], check=True, capture_output=True)
    return str(cert), str(key)


def test_without_a_key_strangers_cannot_administer() -> None:
    with serving(server={"host": "0.0.0.0"}) as served:
        for method, path in (("GET", "groups"), ("PATCH", "groups/weights"), ("POST", "groups/left/drain")):
            error = error_of(served.client.request(method, f"/admin/{path}", json={}), 403)
            assert error["code"] == "admin_closed"
            assert "server.admin_api_key_file" in error["message"]
        assert served.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200
        assert served.get("/health").status_code == 200


def test_with_a_key_administrators_can() -> None:
    with serving(server={"host": "0.0.0.0", "admin_api_key": "k"}) as served:
        assert served.client.get("/admin/groups", headers={"Authorization": "Bearer k"}).status_code == 200
        error_of(served.get("/admin/groups"), 401)


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (ServerConfig(), []),
        (ServerConfig(host="::1"), []),
        (ServerConfig(host="0.0.0.0"), ["has no key", "the admin routes are closed"]),
        (ServerConfig(host="0.0.0.0", admin_api_key="k"), ["has no key: whoever reaches it may use the model; set"]),
        (ServerConfig(host="::", api_key="k"), ["in the clear"]),
        (ServerConfig(host="::", api_key="k", ssl_certfile="x"), []),
    ],
)
def test_the_start_says_what_is_open(server: ServerConfig, told: list[str]) -> None:
    text = "\n".join(exposure(server))
    assert all(part in text for part in told)
    assert bool(text) == bool(told)


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("0.0.0.0", False), ("h", False)]
)
def test_which_addresses_are_this_machines_own(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_certificates_that_do_not_fit_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    _, other = certificate(tmp_path, "other")
    encrypted = tmp_path / "encrypted.key"
    command = ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", key, "-out", str(encrypted)]
    subprocess.run(command, check=True, capture_output=True)
    assert tls_files(ServerConfig(ssl_certfile=cert, ssl_keyfile=key)) == (cert, key)
    assert tls_files(ServerConfig()) == (None, None)
    for given, told in (
        ((cert, other), "key values mismatch"),
        ((cert, None), "own private key"),
        ((str(tmp_path / "absent.pem"), key), "there is no such file"),
        ((str(tmp_path), key), "PEM"),
        ((cert, str(encrypted)), "is encrypted"),
    ):
        with pytest.raises(ConfigError, match=told):
            tls_files(ServerConfig(ssl_certfile=given[0], ssl_keyfile=given[1]))


def test_it_is_served_over_tls_and_its_traffic_moved(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    model = write_tiny_model(tmp_path / "model")
    process = Process(model, tmp_path, "server.port=0", f"server.ssl_certfile={cert}", f"server.ssl_keyfile={key}")
    try:
        url = process.wait_ready()
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=cert)
        with httpx.Client(base_url=url, verify=trusting, timeout=120, trust_env=False) as client:
            assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(f"{url}/health", timeout=120, trust_env=False)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{url.replace('https', 'http')}/health", timeout=120, trust_env=False)
        traffic = [sys.executable, "-m", "sglk", "traffic", "show", "--url", url]
        assert b"--cacert FILE trusts" in subprocess.run(traffic, capture_output=True, check=False).stderr
        plain = [*traffic[:-1], url.replace("https", "http")]
        assert b"https://" in subprocess.run(plain, capture_output=True, check=False).stderr
        shown = subprocess.run([*traffic, "--cacert", cert], capture_output=True, check=True).stdout
        assert b"group0" in shown
    finally:
        process.child.terminate()
        wait_until(lambda: process.child.poll() is not None)
    assert process.child.returncode == 0
    assert "Traceback" not in process.text()


def test_a_request_may_not_take_for_ever() -> None:
    with serving(patient_runner(), server={"request_timeout_s": 5.0}) as served:
        error = error_of(served.post("/v1/completions", ENDLESS), 504)
        assert error["code"] == "request_timeout"
        assert "within 5 s (server.request_timeout_s)" in error["message"]
        for path, body in (("/v1/completions", ENDLESS), ("/generate", NATIVE_ENDLESS)):
            lines = [line for line in served.post(path, {**body, "stream": True}).text.split("\n\n") if line]
            assert '"code":"request_timeout"' in lines[-1]
            assert len(lines) > 1
        served.wait_idle()
        wait_until(lambda: served.samples()["sglk_requests_in_flight"] == 0)
        samples = served.samples()
        assert samples["sglk_requests_failed_total"] == samples["sglk_requests_received_total"] == 3
        assert served.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("head", [b"GET /health?" + b"q" * 300_000, b"GET /health HTTP/1.1\r\nx-y: " + b"s" * 300_000])
def test_a_head_of_megabytes_is_refused(served: Served, head: bytes) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        with contextlib.suppress(ConnectionError):  # it is closed while we still send
            connection.sendall(head)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert served.get("/health").status_code == 200


def test_files_of_keys_that_all_users_can_read_are_named(tmp_path: Path) -> None:
    files = {}
    for name, mode in (("api_key", 0o644), ("admin_api_key", 0o640), ("group", 0o604)):
        files[name] = tmp_path / name
        files[name].write_text(name)
        files[name].chmod(mode)
    groups = f"groups=[{{name: far, url: 'http://far', api_key_file: '{files['group']}'}}]"
    words = [f"server.{name}_file={files[name]}" for name in ("api_key", "admin_api_key")]
    config = compose("serve", [*words, groups]).config
    told = list(open_secrets(config))
    open_to_all = "can be read by every user of this machine; chmod 600 it"
    assert told == [
        f"WARNING: server.api_key_file={files['api_key']} {open_to_all}",
        f"WARNING: api_key_file of group 'far'={files['group']} {open_to_all}",
    ]
    files["api_key"].unlink()
    assert len(list(open_secrets(config))) == 1
