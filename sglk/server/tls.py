"""The server's certificate: looked at before anything is loaded."""

import ssl

from sglk.config.home import expanded
from sglk.config.schema import ServerConfig
from sglk.errors import ConfigError


def scheme_of(server: ServerConfig) -> str:
    """Return how the server is spoken to."""
    return "http" if server.ssl_certfile is None else "https"


def tls_files(server: ServerConfig) -> tuple[str | None, str | None]:
    """Return the paths of certificate and key, which fit together; raises ConfigError when they do not."""
    if server.ssl_certfile is None:
        return None, None
    cert = str(expanded(server.ssl_certfile))
    key = None if server.ssl_keyfile is None else str(expanded(server.ssl_keyfile))
    named = f"server.ssl_certfile={server.ssl_certfile}" + (f", server.ssl_keyfile={server.ssl_keyfile}" if key else "")
    try:
        # Asked for a pass phrase, the server would wait at a terminal that nobody looks at.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_pass_phrase)
    except FileNotFoundError as error:
        raise ConfigError(f"{named}: there is no such file; give PEM files") from error
    except ssl.SSLError as error:
        reason = (error.reason or "unreadable").lower().replace("_", " ")
        raise ConfigError(f"{named}: {reason}; give a certificate and its own private key in PEM form") from error
    except OSError as error:
        raise ConfigError(f"{named}: {error.strerror}; give PEM files that this user may read") from error
    return cert, key


def _no_pass_phrase() -> str:
    raise ConfigError("server.ssl_keyfile is encrypted; give a key without a pass phrase, readable by this user alone")
