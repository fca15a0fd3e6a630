"""`/docs`: what `/openapi.json` says as one page to read, which takes nothing from elsewhere."""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

router = APIRouter(include_in_schema=False)

Tree = Mapping[str, Any]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 0 auto; padding: 1em; }
h2 { font-size: 1.05em; margin: 2em 0 .3em; overflow-wrap: anywhere; } h2 b { display: inline-block; min-width: 4em; }
p { margin: .3em 0; white-space: pre-line; } code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; } td { padding: .15em 1em .15em 0; vertical-align: top; }
td code { white-space: nowrap; }
@media (max-width: 40em) { td { display: block; } td + td { padding: 0 0 .4em 1.5em; } }
"""


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Return the page."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; frame-ancestors 'none'"
    return HTMLResponse(_page(request.app), headers={"Content-Security-Policy": policy})


@cache
def _page(app: Any) -> str:
    tree: Tree = app.openapi()
    info = tree["info"]
    title = escape(f"{info['title']} {info['version']}")
    operations = (
        "".join(_operation(tree, method, path, operation))
        for path, methods in tree["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n'
        f'<h1>{title}</h1>\n<p>{escape(info["description"])} For programs: <a href="openapi.json">openapi.json</a>. '
        'What is running: <a href="dashboard">dashboard</a>.</p>\n<p>An error is <code>{"error": {"message", "type", '
        '"param", "code"}}</code>. Fields marked * must be there.</p>\n'
        f"{''.join(operations)}</html>\n"
    )


def _operation(tree: Tree, method: str, path: str, operation: Tree) -> Iterator[str]:
    yield f"<h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2>\n<p>{escape(operation['description'])}</p>\n"
    rows = [
        _row(each["name"], each.get("required", False), each.get("description") or f"in the {each['in']}")
        for each in operation.get("parameters", ())
    ]
    content = operation.get("requestBody", {}).get("content", {})
    rows += [row for each in content.values() for row in _fields(tree, each["schema"])]
    if rows:
        yield f"<table>\n{''.join(rows)}</table>\n"


def _fields(tree: Tree, schema: Tree, within: str = "") -> Iterator[str]:
    """Yield a row for every field of an object, and below it those of the object that it may hold."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield _row(f"{within}{name}", name in required, field.get("description", ""))
        for inner in _named_in(field):
            yield from _fields(tree, tree["components"]["schemas"][inner], f"{within}{name}.")


def _named_in(schema: Tree) -> set[str]:
    """Return the names of the schemas that a field's own refers to."""
    own = {schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set()
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    return own.union(*map(_named_in, parts))


def _row(name: str, required: bool, description: str) -> str:
    mark = "*" if required else ""
    return f"<tr><td><code>{escape(name)}</code>{mark}</td><td>{escape(description)}</td></tr>\n"
