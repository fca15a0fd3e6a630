"""The server's keys, from where they are not seen: a file or the environment."""

from collections.abc import Mapping

from sglk.config.bench_schema import BenchConfig
from sglk.config.home import expanded
from sglk.config.schema import ServeConfig
from sglk.errors import ConfigError

VARIABLES = {"api_key": "SGLK_API_KEY", "admin_api_key": "SGLK_ADMIN_API_KEY"}
"""By the name of the setting that they stand in for."""

MAX_BYTES = 4096
"""A longer file is not one of a key."""


def take_keys(config: ServeConfig, environ: Mapping[str, str]) -> None:
    """Set the keys that are not given from their files, or else from the environment; raises ConfigError.

    A benchmark of a running server sends $SGLK_API_KEY where it is not given another key.
    """
    server = config.server
    for name, variable in VARIABLES.items():
        file = getattr(server, f"{name}_file")
        if file is not None and getattr(server, name) is not None:
            raise ConfigError(f"both server.{name} and server.{name}_file are given; leave one of them out")
        if file is not None:
            setattr(server, name, read_key(file, f"server.{name}_file={file}"))
        elif getattr(server, name) is None and variable in environ:
            if not environ[variable].strip():
                # An unset variable of a deployment's template must not open the server.
                raise ConfigError(f"${variable} is empty; put the key there, or unset it for none")
            setattr(server, name, environ[variable].strip())
    if isinstance(config, BenchConfig) and config.bench.url is not None and config.bench.api_key is None:
        config.bench.api_key = environ.get(VARIABLES["api_key"])


def read_key(file: str, origin: str) -> str:
    """Return the key in `file`; ConfigError begins with `origin`, what names the file."""
    path = expanded(file)
    try:
        if not path.is_file():
            raise ConfigError(f"{origin} is not a file; name one that holds the key")
        with path.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        key = content.decode().strip()
    except OSError as error:
        raise ConfigError(f"{origin}: {error.strerror}; name a file that holds the key") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{origin} is not UTF-8 text; it holds the key and nothing else") from error
    if not key or len(content) > MAX_BYTES:
        raise ConfigError(f"{origin} {'is empty' if not key else 'is too long'}; it holds the key and nothing else")
    return key
