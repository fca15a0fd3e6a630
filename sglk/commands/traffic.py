"""`sglk traffic`: show and move the traffic of a running server between its device groups."""

import argparse
import json
import math
import os
import re
import ssl
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import httpx

from sglk.commands.terminal import console, plain_table
from sglk.config.home import expanded
from sglk.errors import ConfigError, RunError, nearest

KEY_VARIABLE = "SGLK_ADMIN_API_KEY"

_USAGE = """usage: sglk traffic VERB ... [--url URL] [--key KEY] [--cacert FILE] [--json]

Show and move the traffic of a running server between its device groups.

verbs
  show                          groups, weights and their history
  set GROUP=WEIGHT ...          new weights; they are ratios, groups not named keep theirs
  rollback                      the weights before the last change, or before the ramp
  drain GROUP [--timeout 60s] [--force]
                                no new requests; what still runs after the timeout ends with an error
  undrain GROUP                 take requests again
  restart GROUP [--timeout 60s] [--force]
                                drain, start the replicas again, come back through probes
  ramp GROUP --to 50 --step 10 --every 10m [--slo 'ttft_p99<2s,error_rate<1%'] [--min-requests 20] [--follow]
                                move step by step; back at once when a limit breaks
  ramp stop | ramp show         leave the weights where they are | how it goes

flags
  --url URL                     the server, http://127.0.0.1:8000 unless given
  --key KEY                     its admin key; $SGLK_ADMIN_API_KEY unless given
  --cacert FILE                 PEM file of the certificate to trust, such as the server's own self-signed one
  --json                        what the server says

examples
  sglk traffic set old=80 new=20
  sglk traffic ramp new --to 50 --step 10 --every 10m --slo 'ttft_p99<2s,error_rate<1%'
  sglk traffic rollback"""

VERBS = ("show", "set", "rollback", "drain", "undrain", "restart", "ramp")
RAMP_ORDERS = ("stop", "show")
"""What may stand for the group after `ramp`."""

_TIMEOUT_S = 30.0
_FOLLOW_S = 1.0
_DURATION = re.compile(r"([0-9.]+)(ms|s|m|h|)")
_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


def run(arguments: Sequence[str]) -> int:
    """Carry out one verb; returns 1 when a followed ramp was rolled back."""
    if not arguments or "--help" in arguments or "-h" in arguments:
        print(_USAGE)
        return 0
    words = [word for word in arguments if word != "--debug"]
    if words[0] not in VERBS:
        raise ConfigError(f"verb {words[0]!r} is unknown{nearest(words[0], VERBS) or '; verbs: ' + ', '.join(VERBS)}")
    asked = _parser().parse_args(words)
    server = Server(asked.url, asked.key or os.environ.get(KEY_VARIABLE), trusted(asked.cacert))
    code: int = asked.act(asked, server)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `sglk traffic --help`")


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False, allow_abbrev=False)
    common.add_argument("--url", default="http://127.0.0.1:8000")
    common.add_argument("--key")
    common.add_argument("--cacert")
    common.add_argument("--json", action="store_true")
    parser = _Parser(prog="sglk traffic", add_help=False, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Parser)

    def verb(name: str, act: Any) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, parents=[common], add_help=False, allow_abbrev=False)
        added.set_defaults(act=act)
        return added

    verb("show", _show)
    verb("set", _set).add_argument("weights", nargs="+", metavar="GROUP=WEIGHT")
    verb("rollback", _rollback)
    for name in ("drain", "restart"):
        parts = verb(name, _drain)
        parts.add_argument("group")
        parts.add_argument("--timeout", default="60s")
        parts.add_argument("--force", action="store_true")
    verb("undrain", _drain).add_argument("group")
    ramp = verb("ramp", _ramp)
    ramp.add_argument("group", metavar="GROUP")
    for flag in ("--to", "--step", "--every", "--slo"):
        ramp.add_argument(flag)
    ramp.add_argument("--min-requests", type=int)
    ramp.add_argument("--follow", action="store_true")
    return parser


class Server:
    """The admin routes of one server."""

    def __init__(self, url: str, key: str | None, trusted: ssl.SSLContext | bool = True) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url!r} does not begin with http:// or https://")
        if key and not (key.isascii() and key.isprintable()):
            # Told without the key itself, which the HTTP library would repeat.
            raise ConfigError(f"the key (--key or {KEY_VARIABLE}) has characters that no key has; give it as it is")
        self._url = url.rstrip("/")
        self._trusted = trusted
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def get(self, path: str) -> Any:
        """Return the answer to GET; raises as `ask` does."""
        return self._call("GET", path)

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Return the answer, an object; raises ConfigError for a refusal, RunError when the server is not reached."""
        found = self._call(method, path, body)
        if not isinstance(found, dict):
            raise RunError(f"{self._url} answered {type(found).__name__} and is no sglk server")
        return found

    def _call(self, method: str, path: str, body: object = None) -> Any:
        try:
            answer = httpx.request(
                method,
                f"{self._url}/admin{path}",
                json=body,
                headers=self._headers,
                timeout=_TIMEOUT_S,
                trust_env=False,
                verify=self._trusted,
            )
        # UnicodeError: a name such as `a..b`.
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            way_out = "is a server running there?"
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                way_out = "--cacert FILE trusts a certificate of your own"
            elif isinstance(error, httpx.RemoteProtocolError) and self._url.startswith("http:"):
                way_out = "perhaps it speaks https:// there"
            raise RunError(f"{self._url} does not answer ({error}); {way_out}") from error
        if answer.status_code != 200:
            raise _refusal(self._url, answer)
        try:
            return answer.json()
        except ValueError:
            raise _stranger(self._url, answer) from None


def trusted(file: str | None) -> ssl.SSLContext | bool:
    """Return whom to trust: the certificates in a PEM file, or (True) whom the machine trusts; raises ConfigError."""
    if file is None:
        return True
    try:
        return ssl.create_default_context(cafile=expanded(file))
    except ssl.SSLError:
        raise ConfigError(f"--cacert {file} is not a certificate in PEM form") from None
    except OSError as error:
        raise ConfigError(f"--cacert {file}: {error.strerror}") from None


def _refusal(url: str, answer: httpx.Response) -> ConfigError | RunError:
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return _stranger(url, answer)
    if answer.status_code == 401:
        return ConfigError(f"{url} wants its admin key; give it by --key or {KEY_VARIABLE}")
    return ConfigError(f"{url}: {message}") if answer.status_code < 500 else RunError(f"{url}: {message}")


def _stranger(url: str, answer: httpx.Response) -> RunError:
    return RunError(f"{url} answered {answer.status_code} and is no sglk server, or one without device groups")


def _show(asked: argparse.Namespace, server: Server) -> int:
    return _print(asked, server.ask("GET", "/groups"))


def _set(asked: argparse.Namespace, server: Server) -> int:
    weights: dict[str, float] = {}
    for word in asked.weights:
        name, _, number = word.partition("=")
        if name in weights:
            raise ConfigError(f"{name!r} is given twice; give each group one weight")
        weight = _number(number)
        if not name or weight is None:
            raise ConfigError(f"{word!r} is not GROUP=WEIGHT; write such as new=20")
        weights[name] = weight
    return _print(asked, server.ask("PATCH", "/groups/weights", {"weights": weights}))


def _rollback(asked: argparse.Namespace, server: Server) -> int:
    return _print(asked, server.ask("POST", "/groups/rollback"))


def _drain(asked: argparse.Namespace, server: Server) -> int:
    body = {} if asked.verb == "undrain" else {"timeout_s": _seconds("--timeout", asked.timeout), "force": asked.force}
    group = server.ask("POST", f"/groups/{_group(asked.group)}/{asked.verb}", body)
    if asked.json:
        print(json.dumps(group, indent=2))
    else:
        print(f"{group['name']} is {group['state']}, {group['open_requests']} requests open")
    return 0


def _ramp(asked: argparse.Namespace, server: Server) -> int:
    if asked.group == "stop":
        return _print_ramp(asked, server.ask("DELETE", "/ramp"))
    if asked.group == "show":
        return _print_ramp(asked, server.ask("GET", "/ramp"))
    for flag in ("to", "step", "every"):
        if getattr(asked, flag) is None:
            raise ConfigError(f"a ramp needs --{flag}; see `sglk traffic --help`")
    body = {
        "group": asked.group,
        "to": _percent("--to", asked.to),
        "step": _percent("--step", asked.step),
        "every_s": _seconds("--every", asked.every),
        "slo": asked.slo,
        "min_requests": asked.min_requests,
    }
    ramp = server.ask("POST", "/ramp", {name: value for name, value in body.items() if value is not None})
    return _follow(asked, server, ramp) if asked.follow else _print_ramp(asked, ramp)


def _follow(asked: argparse.Namespace, server: Server, ramp: dict[str, Any]) -> int:
    told = None
    while True:
        if (told_now := (ramp["share"], ramp["state"])) != told:
            _print_ramp(asked, ramp)
            told = told_now
        if ramp["state"] != "moving":
            return 1 if ramp["state"] == "rolled_back" else 0
        time.sleep(_FOLLOW_S)
        ramp = server.ask("GET", "/ramp")


def _print_ramp(asked: argparse.Namespace, ramp: dict[str, Any]) -> int:
    if asked.json:
        print(json.dumps(ramp))
    else:
        reason = f": {ramp['reason']}" if ramp["reason"] else ""
        state = ramp["state"].replace("_", " ")
        print(f"ramp of {ramp['group']} to {ramp['to']:g} %: {ramp['share']:g} % now, {state}{reason}", flush=True)
    return 0


def _print(asked: argparse.Namespace, overview: dict[str, Any]) -> int:
    if asked.json:
        print(json.dumps(overview, indent=2))
        return 0
    percent = overview["weights"]["percent"]
    table = plain_table("group", "weight", "share", "taken", "state", "open", "replicas", "chips", "trouble")
    for group in overview["groups"]:
        chips = dict.fromkeys(replica["chip"] for replica in group["replicas"])
        table.add_row(
            group["name"],
            f"{group['weight']:g}",
            "standby" if group["standby"] else f"{percent[group['name']]:g} %",
            "" if group["share_taken"] is None else f"{100 * group['share_taken']:.3g} %",
            group["state"],
            str(group["open_requests"]),
            str(len(group["replicas"])),
            ", ".join(chips),
            group["trouble"] or "",
        )
    console().print(table)
    history = plain_table("since", "weights", "by", "reason")
    for weights in overview["history"][-5:]:
        shares = ", ".join(f"{name} {share:g}" for name, share in weights["shares"].items())
        history.add_row(weights["since"], shares, weights["source"], weights["reason"])
    print()
    console().print(history)
    if (file := overview["weights_file"]) is not None and file["error"]:
        print(f"\nweights file {file['path']}: {file['error']}")
    if (ramp := overview["ramp"]) is not None:
        print()
        _print_ramp(asked, ramp)
    return 0


def _group(name: str) -> str:
    """Return the name of a group, which goes into a path."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ConfigError(f"{name!r} is no group's name, which is of letters, digits, `_`, `-` and `.`")
    return name


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _percent(flag: str, text: str) -> float:
    if (percent := _number(text.removesuffix("%"))) is None:
        raise ConfigError(f"{flag} {text!r} is not a percentage; write such as {flag} 50")
    return percent


def _seconds(flag: str, text: str) -> float:
    match = _DURATION.fullmatch(text)
    try:
        if match is not None:
            return float(match[1]) * _UNITS[match[2]]
    except ValueError:
        pass
    raise ConfigError(f"{flag} {text!r} is not a time; write such as {flag} 90s, 10m or 1h")
