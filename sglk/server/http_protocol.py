"""Requests parsed by httptools, with the limits that it does not have itself."""

from contextlib import suppress

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sglk.server.http_server import MAX_HEAD_BYTES
from sglk.server.offers import OfferProtocol

UNREAD_BYTES = 2**20
"""Of a body that nobody wants, such as that of an unknown route: read for the sake of the connection's next request."""


class HeadTooLong(Exception):
    """Ends the parsing of a request."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol over httptools; refuses long heads, and reads no long body on whose request is answered."""

    _head_bytes = 0
    _unread_bytes = 0
    _in_head = False

    def data_received(self, data: bytes) -> None:
        """Parse `data`; what is neither a complete head nor may become one of allowed length ends the connection."""
        begun = self._in_head
        if not begun and self._is_idle() and b"\nupgrade:" in data.partition(b"\r\n\r\n")[0].lower():
            self._hand_over(data)
            return
        super().data_received(data)
        # A header that never ends is told to nobody, so the bytes that came for it are counted here.
        if begun and self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")

    def _is_idle(self) -> bool:
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def _hand_over(self, data: bytes) -> None:
        """Let h11 read a request that offers another protocol, such as HTTP/2: httptools would lose its body."""
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        other = OfferProtocol(self.config, self.server_state, self.app_state, self.loop)
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(data)

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._head_bytes, self._in_head = 0, True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a part of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End counting."""
        self._in_head, self._unread_bytes = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep a piece for the application; when it has answered already, drop it and count."""
        super().on_body(body)
        if self.cycle.response_complete:
            self._unread_bytes += len(body)
            if self._unread_bytes > UNREAD_BYTES:
                self.transport.close()

    def on_message_complete(self) -> None:
        """Note the end of the request, also of one that has been answered."""
        super().on_message_complete()
        self.cycle.more_body = False

    def on_response_complete(self) -> None:
        """Close a connection on which much would come that nobody wants, or, with `Expect`, perhaps nothing."""
        cycle = self.cycle
        unread = cycle.response_complete and cycle.more_body
        if unread and (cycle.waiting_for_100_continue or self._declared_bytes() > UNREAD_BYTES):
            self.transport.close()
        super().on_response_complete()

    def _declared_bytes(self) -> int:
        with suppress(ValueError):
            return int(dict(self.headers).get(b"content-length", b"0"))
        return 0

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            # The parser makes an error of it, and uvicorn a 400.
            raise HeadTooLong
