"""Whether an OpenAI server answers: straight to its host, whatever proxies the environment names."""

import asyncio
from typing import Any

import httpx

PROBE_TIMEOUT_S = 5.0
TOKEN_TIMEOUT_S = 120.0
"""The first token of an engine may take long: kernels are compiled for it."""


def one_token(model: str | None) -> dict[str, Any]:
    """Return the body of a request to `/v1/completions` that nothing is wrong with; `model` = None: whichever it is."""
    body = {"prompt": "Hello", "max_tokens": 1, "temperature": 0}
    return body if model is None else {"model": model, **body}


def connect(url: str, key: str | None, timeout_s: float = PROBE_TIMEOUT_S) -> httpx.Client:
    """Return a client for one server."""
    return httpx.Client(base_url=url, headers=authorization(key), timeout=timeout_s, trust_env=False)


def authorization(key: str | None) -> dict[str, str]:
    """Return the header that carries `key`, if there is one."""
    return {} if key is None else {"authorization": f"Bearer {key}"}


def unhealthy(url: str, key: str | None = None, timeout_s: float = PROBE_TIMEOUT_S) -> str | None:
    """Return what `/health` answers in place of 200, None where it does; raises httpx.HTTPError without an answer."""
    with connect(url, key, timeout_s) as http:
        status = http.get("/health").status_code
    return None if status == 200 else f"/health answers {status}"


def first_model(url: str, key: str | None) -> str:
    """Return the name of the model that a server serves; raises httpx.HTTPError, or ValueError for another answer."""
    with connect(url, key) as http:
        return _first_named(http.get("/v1/models"))


def without_token(url: str, model: str | None = None, key: str | None = None) -> str | None:
    """Return why a server does not generate a real token, None where it does; `model` = None: whichever it has."""
    try:
        if (why := unhealthy(url, key)) is not None:
            return why
        with connect(url, key, TOKEN_TIMEOUT_S) as http:
            response = http.post("/v1/completions", json=one_token(model or first_model(url, key)))
        return _fault_of(response)
    except httpx.HTTPError as error:
        return _reason(error)
    except ValueError as error:
        return str(error)


def token_fault(url: str, model: str | None, key: str | None, limit_s: float = PROBE_TIMEOUT_S) -> str | None:
    """Return what a server answers in place of a token, None where it gives one; `model` = None: whichever it has.

    Raises httpx.TransportError without an answer that is complete in `limit_s`.
    """

    async def ask() -> str | None:
        async with httpx.AsyncClient(base_url=url, headers=authorization(key), timeout=None, trust_env=False) as http:
            name = model or _first_named(await http.get("/v1/models"))
            return _fault_of(await http.post("/v1/completions", json=one_token(name)))

    try:
        # The limits of httpx are for each piece, of which there may be many.
        return asyncio.run(asyncio.wait_for(ask(), limit_s))
    except asyncio.TimeoutError:
        raise httpx.ReadTimeout(f"no token within {limit_s:g} s") from None
    except httpx.TransportError:
        raise
    except (httpx.HTTPError, ValueError) as error:
        return str(error)


def _first_named(response: httpx.Response) -> str:
    try:
        return str(_parsed(response.raise_for_status())["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("/v1/models names no model") from error


def _fault_of(response: httpx.Response) -> str | None:
    """Return what is wrong with an answer of `/v1/completions`."""
    if response.status_code != 200:
        return f"/v1/completions answers {response.status_code}: {' '.join(response.text[:300].split())}"
    answer = _parsed(response)
    has_choice = isinstance(answer, dict) and bool(answer.get("choices"))
    return None if has_choice else "/v1/completions answers without a choice"


def _parsed(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{response.url.path} answers with something else than JSON") from error


def _reason(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
