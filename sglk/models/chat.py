"""Messages to prompt text by a jinja2 chat template, rendered as transformers does, in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.nodes import Node
from jinja2.parser import Parser

from sglk.config.home import expanded
from sglk.errors import ConfigError, ModelLoadError, RequestError
from sglk.models.chat_messages import plain_messages
from sglk.models.template_limits import MAX_TEMPLATE_CHARACTERS, LimitedEnvironment, TemplateLimit, rendered
from sglk.models.tokenizer import Tokenizer

_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template may raise over messages that it was not written for."""


class TemplateRefusal(jinja2.TemplateError):
    """A template called `raise_exception`: it refuses the messages, and says why."""


class ChatTemplate:
    """The chat templates of one served model, compiled once."""

    def __init__(self, templates: Mapping[str, str], *, bos_token: str | None, eos_token: str | None) -> None:
        """Compile `templates` (jinja2 text by name); raises jinja2.TemplateSyntaxError."""
        environment = _environment()
        self._templates = {name: environment.from_string(text) for name, text in templates.items()}
        # As in transformers, an absent special token is an undefined name, which renders as nothing.
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {name: token for name, token in tokens.items() if token is not None}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the prompt for OpenAI-style `messages`; encode it with `add_special_tokens=False`.

        Raises RequestError where there is no template, where the template refuses the messages, or where the
        messages are not text. `variables` may have any names, also `self`.
        """
        template = self._choose(with_tools=bool(tools))
        context = {"documents": None, **self._tokens, **variables, "add_generation_prompt": add_generation_prompt}
        context |= {"messages": plain_messages(messages), "tools": tools or None}
        try:
            return rendered(template.generate(context))
        except TemplateRefusal as error:
            raise RequestError(str(error), param="messages", code="chat_template_refused") from error
        except _TEMPLATE_FAILURES as error:
            raise RequestError(
                f"the chat template cannot render these messages: {error}",
                param="messages",
                code="chat_template_failed",
            ) from error

    def _choose(self, with_tools: bool) -> jinja2.Template:
        names = (["tool_use"] if with_tools else []) + ["default"]
        for name in names:
            if name in self._templates:
                return self._templates[name]
        if not self._templates:
            raise RequestError(
                "this model has no chat template; use /v1/completions, or start the server with "
                "server.chat_template=<file>",
                param="messages",
                code="no_chat_template",
            )
        raise RequestError(
            f"this model's chat templates have no `default` (only {', '.join(self._templates)}); start the server with "
            "server.chat_template=<file>",
            param="messages",
            code="no_chat_template",
        )


def load_chat_template(tokenizer: Tokenizer, file: str | None = None) -> ChatTemplate:
    """Return the template in `file` (`server.chat_template`), or the tokenizer's own.

    Raises ConfigError where the file is missing or has a syntax error, ModelLoadError where the model's own template
    has one.
    """
    if file is not None:
        return _compile(tokenizer, {"default": _read(file)}, f"server.chat_template={file}", ConfigError)
    return _compile(tokenizer, tokenizer.chat_templates, "the model's chat template", ModelLoadError)


def check_chat_template(file: str) -> None:
    """Raise ConfigError where `file` (`server.chat_template`) is missing or has a syntax error; needs no model."""
    try:
        ChatTemplate({"default": _read(file)}, bos_token=None, eos_token=None)
    except TemplateLimit as error:
        raise ConfigError(f"server.chat_template={file}: {error}; give a file with a jinja2 template") from error
    except jinja2.TemplateSyntaxError as error:
        raise _syntax_error(f"server.chat_template={file}", error, ConfigError) from error


def _read(file: str) -> str:
    try:
        with expanded(file).open(encoding="utf-8") as opened:
            return opened.read(MAX_TEMPLATE_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"server.chat_template={file}: {reason}; give a file with a jinja2 template") from error


def _compile(
    tokenizer: Tokenizer, templates: Mapping[str, str], origin: str, complaint: type[ConfigError | ModelLoadError]
) -> ChatTemplate:
    try:
        return ChatTemplate(templates, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
    except TemplateLimit as error:
        raise complaint(f"{origin}: {error}; give your own with server.chat_template=<file>") from error
    except jinja2.TemplateSyntaxError as error:
        raise _syntax_error(origin, error, complaint) from error


def _syntax_error(
    origin: str, error: jinja2.TemplateSyntaxError, complaint: type[ConfigError | ModelLoadError]
) -> ConfigError | ModelLoadError:
    way_out = "correct it" if complaint is ConfigError else "give your own with server.chat_template=<file>"
    return complaint(f"{origin} has a syntax error in line {error.lineno}: {error.message}; {way_out}")


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks answers for training; here it renders its contents."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> LimitedEnvironment:
    """Return the environment that chat templates are written for."""
    environment = LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replace jinja2's own filter, which escapes HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)
