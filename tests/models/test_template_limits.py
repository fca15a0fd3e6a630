"""A chat template that comes with a model cannot keep the server busy, fill its memory, or reach out of the sandbox."""

from pathlib import Path

import pytest

from sglk.errors import ConfigError, RequestError
from sglk.models import template_limits
from sglk.models.chat import ChatTemplate, check_chat_template

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
DOUBLING = "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x OP n.x %}{% endfor %}"
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}BODY{% endfor %}{% endfor %}"
LONG = "makes a text of more than"
WIDE = "asks for a width of millions"


def render(text: str) -> str:
    return ChatTemplate({"default": text}, bos_token=None, eos_token=None).render(MESSAGES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{{ 'x' * 10**9 }}", LONG),
        ("{{ 10**9 * 'x' }}", LONG),
        ("{{ 2 ** 1000000000 }}", LONG),
        (DOUBLING.replace("OP", "~"), LONG),
        (DOUBLING.replace("OP", "+"), LONG),
        ("{{ 'x'.ljust(10**9) }}", LONG),
        ("{{ 'x'|center(10**9) }}", LONG),
        ("{{ ('a' * 10**6)|replace('a', 'b' * 10**6) }}", LONG),
        ("{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}", LONG),
        ("{% set l = ['a' * 10**6] * 10**3 %}{{ l|join }}", LONG),
        ("{{ '%1000000000d' % 3 }}", WIDE),
        ("{{ '%*d' % (10**9, 3) }}", LONG),
        ("{{ '{:1000000000}'.format(3) }}", WIDE),
        ("{{ '%1000000000d'|format(3) }}", WIDE),
        ("{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
    ],
)
def test_a_template_that_wants_too_much_is_a_refused_request(text: str, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        render(text)


@pytest.mark.parametrize("body", ["{% set x = 1 %}", "{% for k in range(99999) %}{% endfor %}", "{{ range(3)|list }}"])
def test_loops_end_in_time(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.05)
    with pytest.raises(RequestError, match=r"it takes longer than 0\.05 s"):
        render(
            "{% for i in range(99999) %}{% for j in range(99999) %}BODY{% endfor %}{% endfor %}".replace("BODY", body)
        )


def test_what_honest_templates_use_renders_as_ever() -> None:
    text = (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {{ m.role ~ ': ' ~ m.content }}"
        "{% if not loop.last %}{{ '-' * 3 }}{% endif %}{% endfor %}"
        "{% for k, v in {'a': 1}.items() %}{{ k + '=' }}{{ '%03d' % v }}{% else %}none{% endfor %}"
        "{% for x in nothing %}{{ x }}{% else %}{{ ', '.join(['p', 'q']) }}{% endfor %}"
        "{{ messages|map(attribute='role')|join('+') }}{{ 'x{}'.format(7) }}{{ 'abc'|replace('b', '') }}"
    )
    assert render(text) == "1/2False user: hi---2/2True assistant: hoa=001p, quser+assistantx7ac"


def test_a_template_of_megabytes_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{# " + "x" * 2**20 + " #}")
    with pytest.raises(ConfigError, match=r"template\.jinja: it has \d+ characters, more than 1048576"):
        check_chat_template(str(file))
