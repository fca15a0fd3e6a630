"""An nginx in front: models by the name that a request gives, servers of a model by weight.

nginx sees a request's body only when it passes the request on. So the first of two servers reads the model's name into
a header, and the second one, on the loopback interface, chooses by it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from urllib.parse import urlsplit

from sglk.config.check_render import SECOND_PORT
from sglk.config.groups import is_weight
from sglk.errors import ConfigError
from sglk.upstream.render.text import HEADER
from sglk.upstream.render.unit import Rendered

MAX_BODY = "32m"

FINEST_SHARE = 1000
"""nginx counts weights in integers; shares are kept to a thousandth of the largest one."""

# Quotes inside a text of a request are escaped, so that this is found as a key alone. nginx reads `\\\\` as `\\`.
_MODEL = r"""'~"model"\s*:\s*"(?<sglk_name>[^"\\\\]+)"' $sglk_name"""
_UNKNOWN = (
    '{"error": {"message": "no such model here; see /v1/models of its server", "type": "invalid_request_error",'
    ' "param": "model", "code": "model_not_found"}}'
)


@dataclass(frozen=True)
class Server:
    """One server of a model."""

    address: str
    """`host:port`"""
    weight: float
    standby: bool = False


def nginx(rendered: Rendered) -> dict[str, str]:
    """Return a file for /etc/nginx/conf.d; raises ConfigError for addresses and names that nginx cannot hold."""
    models = {name: _servers(rendered) for name in rendered.model_names}
    for name, shares in rendered.config.render.routes.items():
        models[name] = [_stated(name, share) for share in shares]
    upstreams = {name: f"sglk_{index}" for index, name in enumerate(models)}
    lines = [
        f"# {HEADER}",
        "# For /etc/nginx/conf.d: models by the name in a request, servers by weight, streams as they come.",
        "# Browsers that ask for this gateway by a name get no further than a server without api_key whose",
        "# server.cors_origins does not list it, such as https://chat.example.com.",
    ]
    for name, servers in models.items():
        _require_name(name)
        lines += _upstream(upstreams[name], name, servers)
    # With its port, by which a page's own requests are told from those of other sites; HTTP/1.0 may name none.
    lines += ["map $http_host $sglk_host {", "    default $http_host;", '    "" $server_addr:$server_port;', "}", ""]
    lines += ["map $request_body $sglk_model {", '    default "";', f"    {_MODEL};", "}", ""]
    lines += ["map $http_x_sglk_model $sglk_upstream {", '    default "";']
    lines += [f'    "" {upstreams[next(iter(models))]}; # a request that names no model']
    lines += [f'    "{name}" {upstream};' for name, upstream in upstreams.items()]
    port = rendered.config.render.listen
    return {f"{rendered.name}.conf": "\n".join([*lines, "}", "", _listening(port, port + SECOND_PORT)])}


def _servers(rendered: Rendered) -> list[Server]:
    """Return the servers of the deployment's own model: those of its groups that run elsewhere, or the one here."""
    remote = [unit for unit in rendered.units if unit.url is not None]
    if not remote:
        return [Server(f"127.0.0.1:{rendered.config.server.port}", 1.0)]
    if len(remote) < len(rendered.units):
        raise ConfigError("groups with a url and groups with devices are mixed; give every group a url for nginx")
    return [Server(_address(str(unit.url)), unit.group.weight, unit.group.standby) for unit in remote]


def _stated(name: str, share: str) -> Server:
    address, equals, weight = share.partition("=")
    try:
        return Server(address, float(weight) if equals else 1.0)
    except ValueError as error:
        raise ConfigError(f"render.routes.{name}: {share!r} is not of the form host:port=weight") from error


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.path not in ("", "/"):
        raise ConfigError(f"url {url}: the rendered nginx passes requests on as plain HTTP; name http://HOST:PORT")
    return f"{parts.hostname}:{parts.port or 80}"


def _require_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._:/@-]+", name):
        raise ConfigError(f"model {name!r}: nginx chooses by names of letters, digits and ._:/@- alone")


def _upstream(upstream: str, name: str, servers: Sequence[Server]) -> Iterator[str]:
    shares = _shares(name, servers)
    yield f"upstream {upstream} {{ # {name}"
    for server, share in zip(servers, shares, strict=True):
        if not re.fullmatch(r"[A-Za-z0-9.-]+:\d{1,5}", server.address):
            raise ConfigError(f"server {server.address!r} of model {name!r} is not of the form host:port")
        role = " backup" if server.standby else "" if share else " down"
        yield f"    server {server.address} weight={share or 1}{role} max_fails=3 fail_timeout=10s;"
    yield from ("    keepalive 64;", "}", "")


def _shares(name: str, servers: Sequence[Server]) -> list[int]:
    """Return the weights as small integers in the same proportion."""
    weights = [server.weight for server in servers]
    if not any(server.weight for server in servers if not server.standby) or not all(map(is_weight, weights)):
        raise ConfigError(f"model {name!r} has no server with a weight above 0, or one below 0; give weights from 0 up")
    scale = FINEST_SHARE / max(weights)
    whole = [max(round(weight * scale), 1) if weight else 0 for weight in weights]
    return [share // gcd(*whole) for share in whole]


def _listening(entry: int, routes: int) -> str:
    return f"""server {{
    listen {entry};
    client_max_body_size {MAX_BODY};
    # The model's name is looked for in a body that is in memory as a whole.
    client_body_buffer_size {MAX_BODY};
    location / {{
        proxy_pass http://127.0.0.1:{routes};
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $sglk_host;
        proxy_set_header X-Sglk-Model $sglk_model;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_buffering off;
        proxy_read_timeout 3600s;
    }}
}}

server {{
    listen 127.0.0.1:{routes};
    client_max_body_size {MAX_BODY};
    client_body_buffer_size {MAX_BODY};
    default_type application/json;
    location / {{
        if ($sglk_upstream = "") {{
            return 404 '{_UNKNOWN}';
        }}
        proxy_pass http://$sglk_upstream;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $sglk_host;
        proxy_buffering off;
        proxy_read_timeout 3600s;
        # While nothing of an answer has been sent on, the next server may be asked.
        proxy_next_upstream error non_idempotent;
        proxy_next_upstream_tries 2;
    }}
}}
"""
