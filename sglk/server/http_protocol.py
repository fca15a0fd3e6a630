"""Requests parsed by httptools, with the limits that it does not have itself."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sglk.server.http_server import MAX_HEAD_BYTES
from sglk.server.offers import OfferProtocol
from sglk.server.unread import EndsUnreadBodies


class HeadTooLong(Exception):
    """Ends the parsing of a request."""


class HttpProtocol(EndsUnreadBodies, HttpToolsProtocol):
    """uvicorn's protocol over httptools; refuses long heads, and reads no long body on whose request is answered."""

    _head_bytes = 0
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
        if self.cycle is not None and self._is_idle() and not self.transport.is_closing():
            self._keep_alive()

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
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep a piece for the application; when it has answered already, drop it and count."""
        super().on_body(body)
        if self.cycle.response_complete:
            self._unread.drop(len(body))

    def on_message_complete(self) -> None:
        """Note the end of the request, also of one that has been answered."""
        super().on_message_complete()
        self.cycle.more_body = False
        self._unread.end()

    def on_response_complete(self) -> None:
        """Wait for the rest of the request, or close the connection."""
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._unread.begin(self.headers)
        super().on_response_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            # The parser makes an error of it, and uvicorn a 400.
            raise HeadTooLong
