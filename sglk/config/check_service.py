"""Rules of the service around the engines: server, keys, TLS, and the router."""

import math
import re
from collections.abc import Iterator

from sglk.config.ranges import address, at_least, header_value, one_of, positive
from sglk.config.schema import RouterConfig, ServerConfig

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
LOG_FORMATS = ("text", "json")
BALANCES = ("least_loaded", "round_robin", "prefix_aware")

_ORIGIN = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?")


def server_problems(server: ServerConfig) -> Iterator[str]:
    """Yield what is wrong with the settings of the server."""
    if not server.host:
        yield "server.host is empty; write 127.0.0.1 for this machine alone, 0.0.0.0 for all interfaces"
    if not 0 <= server.port <= 65535:
        yield f"server.port={server.port} is not a port; allowed: 0 (any free port) to 65535"
    for name in ("api_key", "admin_api_key"):
        key = getattr(server, name)
        # An unset variable of the environment must not open the server.
        if key is not None and not key.strip():
            yield f"server.{name} is empty; write the key, or null for none"
        yield from header_value(f"server.{name}", key)
    yield from _tls(server)
    for origin in server.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            yield (
                f"server.cors_origins: {origin!r} is not the origin of a web site; write scheme://host or"
                " scheme://host:port, without a path"
            )
    yield from positive("server.request_timeout_s", server.request_timeout_s)
    yield from one_of("server.log_level", server.log_level, LOG_LEVELS)
    yield from one_of("server.log_format", server.log_format, LOG_FORMATS)
    if server.otlp_endpoint is not None:
        yield from address("server.otlp_endpoint", server.otlp_endpoint)
    for name in ("max_queued_requests", "max_choices"):
        yield from at_least(f"server.{name}", getattr(server, name), 1)
    if server.shutdown_timeout_s < 0 or not math.isfinite(server.shutdown_timeout_s):
        yield f"server.shutdown_timeout_s={server.shutdown_timeout_s:g} is not a number of seconds from 0 up"


def _tls(server: ServerConfig) -> Iterator[str]:
    if server.ssl_keyfile is not None and server.ssl_certfile is None:
        yield "server.ssl_keyfile is given without server.ssl_certfile; give both"
    if server.ssl_certfile is not None and not server.ssl_certfile:
        yield "server.ssl_certfile is empty; name the certificate's file, or write null for plain HTTP"


def router_problems(router: RouterConfig) -> Iterator[str]:
    """Yield what is wrong with the settings of the router."""
    yield from one_of("router.policy", router.policy, BALANCES)
    yield from at_least("router.breaker_failures", router.breaker_failures, 1)
    for name in ("breaker_cool_down_s", "step_timeout_s", "restart_wait_s", "restart_after_s"):
        yield from positive(f"router.{name}", getattr(router, name))
    header = router.session_header
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
        yield f"router.session_header={header!r} is not the name of an HTTP header; write one such as x-session-id"
