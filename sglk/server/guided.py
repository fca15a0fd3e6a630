"""Fields that say what an answer must look like, and the grammar that they become."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from sglk.engine.messages import Grammar
from sglk.errors import RequestError
from sglk.server.body import Body

MAX_GRAMMAR_CHARACTERS = 2**18
MAX_CHOICES = 4096

ANY_OBJECT = Grammar("json_schema", '{"type":"object"}')
"""OpenAI's `json_object`."""

RESPONSE_FORMATS = ("text", "json_object", "json_schema")

GrammarText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)]
ChoiceText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)]


class GrammarFields(Body):
    """SGLang's fields for guided decoding, and `choice`; at most one of them may be given."""

    json_schema: GrammarText | dict[str, Any] | None = Field(
        default=None, description="a JSON schema, as an object or as a string of at most 262144 characters"
    )
    regex: GrammarText | None = Field(
        default=None, description=f"a regular expression of 1 to {MAX_GRAMMAR_CHARACTERS} characters"
    )
    ebnf: GrammarText | None = Field(
        default=None, description=f"a grammar in GBNF or Lark of 1 to {MAX_GRAMMAR_CHARACTERS} characters"
    )
    choice: Annotated[list[ChoiceText], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)] | None = Field(
        default=None, description=f"a list of 1 to {MAX_CHOICES} strings, none of them empty"
    )
    response_format: dict[str, Any] | None = Field(
        default=None, description='an object such as {"type": "json_schema", "json_schema": {"schema": {...}}}'
    )


def grammar_of(fields: GrammarFields) -> Grammar | None:
    """Return the grammar that `fields` ask for; raises RequestError when they ask for several."""
    found = dict(_grammars(fields))
    if len(found) > 1:
        first, second, *_ = found
        raise RequestError(f"`{first}` and `{second}` exclude each other; give one of them", param=second)
    return next(iter(found.values()), None)


def _grammars(fields: GrammarFields) -> Iterator[tuple[str, Grammar]]:
    if fields.response_format is not None:
        grammar = _from_response_format(fields.response_format)
        if grammar is not None:
            yield "response_format", grammar
    if fields.json_schema is not None:
        given = fields.json_schema
        yield "json_schema", Grammar("json_schema", given if isinstance(given, str) else json.dumps(given))
    if fields.regex is not None:
        yield "regex", Grammar("regex", fields.regex)
    if fields.ebnf is not None:
        yield "ebnf", Grammar("ebnf", fields.ebnf)
    if fields.choice is not None:
        yield "choice", Grammar("choice", json.dumps(fields.choice))


def _from_response_format(given: dict[str, Any]) -> Grammar | None:
    """Return the grammar of OpenAI's `response_format`; a schema's `name` and `strict` change nothing here."""
    kind = given.get("type")
    if kind not in RESPONSE_FORMATS:
        raise _refusal("type", f"one of {', '.join(RESPONSE_FORMATS)}")
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    described = given.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise _refusal("json_schema.schema", "a JSON schema, as an object")
    return Grammar("json_schema", json.dumps(schema))


def _refusal(name: str, wanted: str) -> RequestError:
    return RequestError(f"`response_format.{name}` must be {wanted}", param="response_format", code="invalid_value")
