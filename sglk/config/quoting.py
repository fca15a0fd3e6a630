"""Values that Hydra's override grammar takes only in quotes, and how to type them in a shell."""

import shlex
from typing import Any

# Inside double quotes a shell still reads these.
_SHELL_SPECIAL = set('"$`\\!')


def quoted(key: str, value: str) -> str:
    """Return the override that gives `key` exactly the text `value`, whatever is in it.

    Inside Hydra's single quotes only a quote, and backslashes in front of one, need escaping.
    """
    return f"{key}={quoted_value(value)}"


def quoted_value(value: str) -> str:
    """Return `value` as a quoted string of the override grammar."""
    escaped, pending = [], 0
    for character in value:
        if character == "\\":
            pending += 1
            continue
        escaped.append("\\" * (2 * pending + 1 if character == "'" else pending) + character)
        pending = 0
    escaped.append("\\" * 2 * pending)
    return f"'{''.join(escaped)}'"


def list_text(value: Any) -> str:
    """Return `value` as Hydra's override grammar has it, with all text quoted."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{list_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(list_text, value)) + "]"
    return quoted_value(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def shell_form(key: str, value: str) -> str:
    """Return what to type in a shell so that `key` becomes exactly the text `value`."""
    if _SHELL_SPECIAL.isdisjoint(value) and value.isprintable():
        return f'{key}="{quoted_value(value)}"'
    if any(ord(character) < ord(" ") for character in value):
        return f"$'{_escaped(quoted(key, value))}'"
    return shlex.quote(quoted(key, value))


def _escaped(text: str) -> str:
    """Return what stands within bash's `$'...'`, which has line breaks on one line."""
    text = text.replace("\\", r"\\").replace("'", r"\'")
    return "".join(f"\\x{ord(each):02x}" if each < " " else each for each in text)


def on_one_line(word: str) -> str:
    """Return `word` with spaces for the line breaks that its quotes do not hold: Hydra's grammar has none."""
    out, quote, escaped = [], "", False
    for character in word:
        if quote:
            quote = "" if character == quote and not escaped else quote
            escaped = character == "\\" and not escaped
        elif character in "'\"":
            quote, escaped = character, False
        elif character in "\r\n":
            character = " "
        out.append(character)
    return "".join(out)


def typed(key: str, value: str) -> str:
    """Return what to type in a shell: plain where that will do, else `shell_form`."""
    plain = all(character.isascii() and (character.isalnum() or character in "._-/:") for character in value)
    return f"{key}={value}" if plain else shell_form(key, value)


def unquoted(value: str) -> str:
    """Return the text that the user meant: without one pair of quotes around it."""
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
