"""How single tokens are written in logprobs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglk.models.tokenizer import Tokenizer


class Spelling:
    """The text of each token of a vocabulary by itself; no two tokens of a byte-level vocabulary are spelt alike."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        """Return the token's text; `bytes:\\xf0\\x9f` for a piece of a character, `token_id:42` where there is none."""
        known = self._texts.get(token_id)
        if known is None:
            known = self._texts[token_id] = self._spell(token_id)
        return known

    def data(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; nothing for ids without text."""
        return self._tokenizer.token_bytes(token_id)

    def shown(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text of an answer: nothing for special tokens."""
        return self._tokenizer.shown_bytes(token_id)

    def _spell(self, token_id: int) -> str:
        data = self._tokenizer.token_bytes(token_id)
        if not data:
            return f"token_id:{token_id}"
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
