"""Requests that offer another protocol, read by h11 and answered in the one they came in."""

from uvicorn.protocols.http.h11_impl import H11Protocol


class OfferProtocol(H11Protocol):
    """uvicorn's protocol over h11, which does not tell each client's offer of HTTP/2 as a missing library."""

    def _unsupported_upgrade_warning(self) -> None:
        self.logger.debug("a client offered another protocol and is answered in HTTP/1.1")
