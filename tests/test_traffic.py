"""`sglk traffic` against a running server with two device groups."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sglk.cli import main
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import Served, serving

Traffic = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pair() -> Iterator[Served]:
    with serving({"gpu": ScriptedRunner(), "kunlun": ScriptedRunner()}, weights={"gpu": 80, "kunlun": 20}) as served:
        yield served


@pytest.fixture
def traffic(pair: Served, capsys: pytest.CaptureFixture[str]) -> Traffic:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["traffic", *words, "--url", pair.url])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_show_set_and_rollback(traffic: Traffic) -> None:
    code, out, _ = traffic("show")
    assert code == 0
    assert "80 %" in out
    assert traffic("set", "gpu=1", "kunlun=3")[0] == 0
    shown = json.loads(traffic("show", "--json")[1])
    assert shown["weights"]["percent"] == {"gpu": 25, "kunlun": 75}
    assert "80 %" in traffic("rollback")[1]
    code, _, err = traffic("rollback")
    assert (code, "no earlier weights are known" in err) == (2, True)


def test_show_tells_what_was_taken_beside_what_the_weights_say(traffic: Traffic, pair: Served) -> None:
    assert traffic("show")[1].splitlines()[0].split()[:4] == ["group", "weight", "share", "taken"]
    for _ in range(4):
        pair.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "user": "one"})
    taken = {group["name"]: group["share_taken"] for group in json.loads(traffic("show", "--json")[1])["groups"]}
    assert sorted(taken.values()) == [0, 1]
    assert "100 %" in traffic("show")[1]


def test_drain_and_undrain(traffic: Traffic) -> None:
    assert traffic("drain", "kunlun", "--timeout", "1m")[1] == "kunlun is drained, 0 requests open\n"
    assert "use force" in traffic("drain", "gpu")[2]
    assert traffic("undrain", "kunlun")[1] == "kunlun is serving, 0 requests open\n"


def test_a_ramp_can_be_started_shown_and_stopped(traffic: Traffic) -> None:
    code, out, _ = traffic("ramp", "kunlun", "--to", "50%", "--step", "10", "--every", "10m", "--slo", "ttft_p99<2s")
    assert (code, out) == (0, "ramp of kunlun to 50 %: 30 % now, moving\n")
    assert traffic("ramp", "show")[1] == out
    assert "stopped: asked for by an operator" in traffic("ramp", "stop")[1]


def test_a_followed_ramp_ends_with_what_became_of_it(traffic: Traffic, pair: Served) -> None:
    code, out, _ = traffic("ramp", "kunlun", "--to", "30", "--step", "10", "--every", "1ms", "--follow")
    assert code == 0
    assert out.endswith("30 % now, done: 30 % reached and held\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("shwo",), "verb 'shwo' is unknown; did you mean 'show'?"),
        (("set", "kunlun"), "'kunlun' is not GROUP=WEIGHT"),
        (("set", "kunlun=much"), "'kunlun=much' is not GROUP=WEIGHT"),
        (("set", "kunlum=3"), "no device group is named 'kunlum'; did you mean 'kunlun'?"),
        (("set", "kunlun=nan"), "'kunlun=nan' is not GROUP=WEIGHT"),
        (("set", "kunlun=1e999"), "'kunlun=1e999' is not GROUP=WEIGHT"),
        (("set", "kunlun=3", "kunlun=4"), "'kunlun' is given twice"),
        (("ramp", "kunlun", "--to", "nan", "--step", "1", "--every", "1s"), "--to 'nan' is not a percentage"),
        (("drain", "../weights"), "'../weights' is no group's name"),
        (("drain", ""), "'' is no group's name"),
        (("show", "--key", "s\necret"), "has characters that no key has"),
        (("show", "--key", "schlüssel"), "has characters that no key has"),
        (("set",), "the following arguments are required: GROUP=WEIGHT"),
        (("drain", "gpu", "--timeout", "soon"), "--timeout 'soon' is not a time"),
        (("ramp", "kunlun"), "a ramp needs --to"),
        (("ramp", "kunlun", "--to", "x", "--step", "1", "--every", "1s"), "--to 'x' is not a percentage"),
        (("ramp", "kunlun", "--to", "500", "--step", "1", "--every", "1s"), "`to` is 500"),
        (("ramp", "show"), "there has been no ramp"),
        (("show", "--tabel"), "unrecognized arguments: --tabel"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(traffic: Traffic, words: tuple[str, ...], told: str) -> None:
    code, out, err = traffic(*words)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_server_that_is_not_there_and_a_missing_key_are_told(
    capsys: pytest.CaptureFixture[str], pair: Served
) -> None:
    assert main(["traffic", "show", "--url", "http://127.0.0.1:1"]) == 1
    assert "does not answer" in capsys.readouterr().err
    assert main(["traffic", "show", "--url", "127.0.0.1:8000"]) == 2
    assert "does not begin with http" in capsys.readouterr().err


@pytest.mark.parametrize("answer", ["<html>welcome</html>", "[]", '"yes"'])
def test_another_server_is_told_as_such(capsys: pytest.CaptureFixture[str], answer: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert main(["traffic", "show", "--url", f"http://127.0.0.1:{server.server_port}"]) == 1
        thread.join()
    err = capsys.readouterr().err
    assert "is no sglk server" in err
    assert err.count("\n") == 1


def test_the_admin_key_is_asked_for_and_taken_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"gpu": ScriptedRunner()}, server={"admin_api_key": "secret"}) as served:
        assert main(["traffic", "show", "--url", served.url]) == 2
        assert "wants its admin key" in capsys.readouterr().err
        monkeypatch.setenv("SGLK_ADMIN_API_KEY", "secret")
        assert main(["traffic", "show", "--url", served.url]) == 0
