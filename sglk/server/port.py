"""The server's socket: taken before anything is loaded, so that a conflict shows at once."""

import errno
import socket
from ipaddress import ip_address
from pathlib import Path

from sglk.errors import ConfigError

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to `host` and `port` (0 = any free port); raises ConfigError when that is impossible.

    It does not listen yet: until the server does, connections are refused.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"server.host={host} is not an address of this machine ({error.strerror})") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(_reason(error, host, port)) from error
    return listener


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL at which a bound socket can be reached from this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def port_taken(port: int) -> str:
    """Return the message for a port that somebody else holds, with the holder's pid where the machine tells it."""
    pid = _holder(port)
    by = f" by process {pid}" if pid else ""
    return f"server.port={port} is taken{by}; stop that process, or choose another port (server.port=0: any free one)"


def _reason(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return port_taken(port)
    if error.errno == errno.EACCES:
        return f"server.port={port} needs privileges; choose a port from 1024 upwards"
    return f"cannot bind server.host={host}, server.port={port}: {error.strerror}"


def _holder(port: int) -> int | None:
    inodes = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening_inodes(table, port)}
    if not inodes:
        return None
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        if _target(file) in inodes:
            return int(file.parts[2])
    return None


def _listening_inodes(table: str, port: int) -> list[str]:
    try:
        lines = Path("/proc/net", table).read_text().splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]


def _target(link: Path) -> str | None:
    try:
        return str(link.readlink())
    except OSError:  # another user's process, or a file that has just been closed
        return None
