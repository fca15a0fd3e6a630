"""What is being served by engines of this process: the one object that the routes share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from sglk.errors import RequestError
from sglk.server.entry import Entry
from sglk.server.spelling import Spelling

if TYPE_CHECKING:
    from sglk.models.chat import ChatTemplate
    from sglk.models.tokenizer import Tokenizer


@dataclass
class Deployment(Entry):
    """One model behind one HTTP entry, whose prompts are encoded here."""

    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spelling = Spelling(self.tokenizer)

    @property
    def can_chat(self) -> bool:
        """Whether there is a chat template."""
        return bool(self.config.server.chat_template or self.tokenizer.chat_template)

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.fleet.context_length

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to one less."""
        return self.fleet.first.vocab_size

    def check_model(self, name: str | None) -> None:
        """Raise RequestError (404) unless `name` is the served model; null stands for it."""
        if name is not None and name != self.model_name:
            message = f"unknown model {name[:60]!r}; this server has {self.model_name!r}"
            raise RequestError(message, param="model", code="model_not_found", status=404)


def deployment_of(request: Request) -> Deployment:
    """Return the deployment that the app of `request` serves."""
    deployment = request.app.state.deployment
    assert isinstance(deployment, Deployment)
    return deployment
