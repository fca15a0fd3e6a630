from datetime import datetime

import jinja2
import pytest
import transformers

from sglk.errors import ConfigError, ModelLoadError, RequestError
from sglk.models.byte_level import byte_tokenizer
from sglk.models.chat import ChatTemplate, check_chat_template, load_chat_template
from sglk.models.tokenizer import Tokenizer, read_tokenizer
from sglk.testing.tiny import CHATML, write_tiny_model

CONVERSATION = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "Why is the sky blue? 你好"},
    {"role": "assistant", "content": "  Rayleigh.  "},
    {"role": "user", "content": "Thanks"},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "wetter", "description": "Wetter für <Ort>", "parameters": {"type": "object"}},
    }
]

TEMPLATES = {
    "chatml": CHATML,
    "special tokens and trimmed blocks": """{{ bos_token }}
    {% for message in messages %}
        {% if message.role == 'assistant' %}
[A] {{ message.content | trim }}{{ eos_token }}
        {%- else %}
[{{ message['role'][0] | upper }}] {{ message['content'] }}
        {% endif %}
    {% endfor %}
{% if add_generation_prompt %}[A]{% endif %}""",
    "tools as JSON": "{% if tools %}{{ tools | tojson }}|{{ tools | tojson(indent=2) }}{% else %}none{% endif %}"
    "{{ messages[1] | tojson }}",
    "generation tag": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "loop controls and namespaces": "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% continue %}{% endif %}{% set ns.n = ns.n + 1 %}{% if ns.n>2 %}{% break %}{% endif %}{{ ns.n }}:{{ m.content }}"
    "{% endfor %}{{ dict(a=1).a }}",
    "undefined names": "{{ pad_token }}{{ nothing }}{% if documents %}d{% endif %}{{ messages | length }}",
    "today": "{{ strftime_now('%Y-%m') }}{{ messages[0].content }}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def chat(template: str, **tokens: str | None) -> ChatTemplate:
    return ChatTemplate({"default": template}, bos_token=tokens.get("bos_token"), eos_token=tokens.get("eos_token"))


def tokenizer(**templates: str) -> Tokenizer:
    return Tokenizer(byte_tokenizer(), bos_token="<|bos|>", eos_token="<|eos|>", chat_templates=templates)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_the_text_equals_that_of_transformers(theirs, template, generation_prompt, tools):
    ours = load_chat_template(tokenizer(default=template))
    expected = theirs.apply_chat_template(
        CONVERSATION, tools=tools, chat_template=template, add_generation_prompt=generation_prompt, tokenize=False
    )
    assert ours.render(CONVERSATION, tools=tools, add_generation_prompt=generation_prompt) == expected


def test_extra_variables_reach_the_template():
    assert chat("{{ enable_thinking }}").render(CONVERSATION, enable_thinking=False) == "False"


def test_extra_variables_cannot_replace_the_messages():
    assert chat("{{ messages[0].role }}").render(CONVERSATION[:1], documents=[], tools=None) == "system"


def test_the_date_is_today():
    before = datetime.now().date()
    text = chat("{{ strftime_now('%Y-%m-%d') }}").render(CONVERSATION)
    assert before <= datetime.strptime(text, "%Y-%m-%d").date() <= datetime.now().date()


def test_a_model_without_a_template_says_how_to_give_one(folder):
    with pytest.raises(RequestError, match=r"no chat template; use /v1/completions, .*server\.chat_template") as raised:
        load_chat_template(read_tokenizer(folder)).render(CONVERSATION)
    assert (raised.value.status, raised.value.code) == (400, "no_chat_template")


def test_a_file_outranks_the_model_s_own_template(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("mine {{ messages[0].content }}{{ bos_token }}")
    assert load_chat_template(tokenizer(default="own"), str(file)).render([{"role": "user", "content": "x"}]) == (
        "mine x<|bos|>"
    )


def test_a_missing_file_fails_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match=r"server.chat_template=.*none\.jinja: No such file"):
        load_chat_template(tokenizer(), str(tmp_path / "none.jinja"))
    with pytest.raises(ConfigError, match="Is a directory"):
        load_chat_template(tokenizer(), str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_chat_template(tokenizer(), str(tmp_path / "binary"))


@pytest.mark.parametrize("text", ["ok\nok\n{% for x in %}", "ok\nok\n{{ a b }}", "ok\n{% if x %}\n{% endfor %}"])
def test_a_syntax_error_fails_at_the_start_with_its_line(tmp_path, text):
    (tmp_path / "bad.jinja").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.jinja has a syntax error in line 3: .*; correct it"):
        load_chat_template(tokenizer(), str(tmp_path / "bad.jinja"))
    with pytest.raises(ConfigError, match=r"bad\.jinja has a syntax error in line 3: .*; correct it"):
        check_chat_template(str(tmp_path / "bad.jinja"))
    with pytest.raises(ModelLoadError, match=r"line 3: .*; give your own with server\.chat_template=<file>"):
        load_chat_template(tokenizer(default=text))


def test_a_template_s_own_refusal_is_the_request_s_error():
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok"
    assert chat(template).render(CONVERSATION[1:]) == "ok"
    with pytest.raises(RequestError, match=r"^System role not supported$") as raised:
        chat(template).render(CONVERSATION)
    assert (raised.value.status, raised.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{{ nothing.x }}",
        "{{ 1 / 0 }}",
        "{{ messages[9].role.x }}",
        "{{ range(10**9) }}",
    ],
)
def test_a_template_that_fails_is_the_request_s_error(template):
    with pytest.raises(RequestError, match="the chat template cannot render these messages"):
        chat(template).render(CONVERSATION)


@pytest.mark.parametrize("nothing", [{"content": None}, {}, {"content": []}])
def test_an_answer_without_content_is_empty_whatever_the_template_makes_of_contents(nothing):
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [CONVERSATION[1], {"role": "assistant", "tool_calls": calls, **nothing}, CONVERSATION[3]]
    assert chat("{% for m in messages %}{{ m.content }}|{% endfor %}").render(messages).endswith("你好||Thanks|")
    assert "<|im_start|>assistant\n<|im_end|>" in chat(CHATML).render(messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ strftime_now.__globals__['__builtins__'] }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template):
    messages = [dict(CONVERSATION[0])]
    with pytest.raises(RequestError):
        chat(template).render(messages)
    assert messages == CONVERSATION[:1]


def test_named_templates(folder):
    named = load_chat_template(tokenizer(default="plain", tool_use="with {{ tools | length }}"))
    assert named.render(CONVERSATION) == "plain"
    assert named.render(CONVERSATION, tools=TOOLS) == "with 1"
    with pytest.raises(RequestError, match=r"no `default` \(only rag\)"):
        load_chat_template(tokenizer(rag="x")).render(CONVERSATION)


def test_syntax_errors_are_jinja_s_where_the_text_has_no_name():
    with pytest.raises(jinja2.TemplateSyntaxError):
        chat("{% if %}")
