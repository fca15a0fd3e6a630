"""Requests that offer another protocol, read by h11 and answered in the one they came in."""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sglk.server.unread import EndsUnreadBodies


class OfferProtocol(EndsUnreadBodies, H11Protocol):
    """uvicorn's protocol over h11, which does not tell each client's offer of HTTP/2 as a missing library.

    It reads no long body on whose request is answered.
    """

    def data_received(self, data: bytes) -> None:
        """Parse `data`."""
        super().data_received(data)
        if self.transport.is_closing() or self.cycle is None or not self.cycle.response_complete:
            self._unread.end()
        elif self._is_body_open():
            self._unread.drop(len(data))
        else:
            self._unread.end()
            self._keep_alive()

    def on_response_complete(self) -> None:
        """Wait for the rest of the request, or close the connection."""
        if self._is_body_open() and not self.transport.is_closing():
            self._unread.begin(self.headers)
        super().on_response_complete()

    def _is_body_open(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY

    def _unsupported_upgrade_warning(self) -> None:
        self.logger.debug("a client offered another protocol and is answered in HTTP/1.1")
