"""What users type: which words are taken as they are, and what the others are answered with."""

import shlex
import subprocess

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from sglk.config.compose import compose
from sglk.config.quoting import quoted, shell_form
from sglk.config.schema import DenyConfig
from sglk.errors import ConfigError
from tests.config.user_files import refusal


@pytest.mark.parametrize(
    ("word", "typed"),
    [
        ("groups=cuda:0,kunlun:0;cuda:1", """groups="'cuda:0,kunlun:0;cuda:1'\""""),
        ("groups=cuda:0,kunlun:0", """groups="'cuda:0,kunlun:0'\""""),
        ("model=/data/a=b/m", """model="'/data/a=b/m'\""""),
        ("model=/data/模型/m", """model="'/data/模型/m'\""""),
        ("model=/data/q#1", """model="'/data/q#1'\""""),
        ("model=/data/Qwen (1)/m", """model="'/data/Qwen (1)/m'\""""),
        ("server.served_model_name=<|im_end|>", """server.served_model_name="'<|im_end|>'\""""),
        ("server.chat_template=~/chat.jinja", """server.chat_template="'~/chat.jinja'\""""),
    ],
)
def test_a_value_outside_the_grammar_is_answered_with_the_quoted_form_and_that_form_works(
    word: str, typed: str
) -> None:
    assert typed in refusal("serve", word)
    config = compose("serve", shlex.split(typed)).config
    value = word.partition("=")[2]
    assert value in (
        ";".join(",".join(group.devices) for group in config.groups),
        config.model.path,
        config.server.served_model_name,
        config.server.chat_template,
    )


@settings(max_examples=300)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).filter(str.strip))
def test_the_form_to_type_gives_exactly_the_text(value: str) -> None:
    words = shlex.split(shell_form("key", value))
    assert len(words) == 1
    for line in (words[0], quoted("key", value)):
        assert OverridesParser.create().parse_override(line).value() == value


@pytest.mark.parametrize("name", ["a\nb", "it's\ta\\b\n", "\x1b[2J"])
def test_the_form_to_type_is_one_line_for_a_shell_whatever_the_text_holds(name: str) -> None:
    form = shell_form("key", name)
    assert form.isprintable()
    word = subprocess.run(["bash", "-c", f"printf %s {form}"], capture_output=True, text=True, check=True).stdout
    assert OverridesParser.create().parse_override(word).value() == name


def test_lists_and_mappings_may_go_over_several_lines() -> None:
    groups = """groups=[{name: a, devices: ['cpu:0'],
                         weight: 80},\r\n{name: "b", devices: ['cpu:1']}]"""
    assert [group.name for group in compose("serve", [groups]).config.groups] == ["a", "b"]
    mapping = "model={path: '/data/two\nlines',\nname: m}"
    assert compose("serve", [mapping]).config.model.path == "/data/two\nlines"
    assert "\\x0a" in refusal("serve", "model=/data/two\nlines")


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_an_unknown_key_is_refused_with_and_without_plus(plus: str) -> None:
    message = refusal("serve", f"{plus}runtime.chunked_prefil_size=4096")
    assert "'runtime.chunked_prefil_size'" in message
    assert "did you mean 'runtime.chunked_prefill_size'" in message
    assert "+" not in message.replace(f"{plus}runtime", "runtime")


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_known_key_is_set_with_and_without_plus(plus: str) -> None:
    assert compose("serve", [f"{plus}server.port=81"]).config.server.port == 81
    assert compose("serve", [f"{plus}chip=h100"]).config.chip.name == "h100"


def test_pass_through_nodes_take_any_key() -> None:
    config = compose("serve", ["backend.options.graph.level=2", "+backend.options.attention-backend=kunlun"]).config
    assert config.backend.options == {"graph": {"level": 2}, "attention-backend": "kunlun"}


def test_an_empty_space_does_not_pass_unheeded() -> None:
    assert "changes nothing; write search=custom" in refusal("tune", "search.space={}")


def test_an_unknown_key_gets_no_advice_on_its_value() -> None:
    assert refusal("serve", "stop_token=<|im_end|>") == "unknown key 'stop_token'; see --help for all keys"
    assert "type server.host=" in refusal("serve", "server.host=<|im_end|>")


@pytest.mark.parametrize(
    ("words", "override"),
    [
        (["--chunked-prefill-size", "4096"], "write runtime.chunked_prefill_size=4096 in place of"),
        (["--chunked-prefill-size=4096"], "write runtime.chunked_prefill_size=4096 in place of"),
        (["--backend", "kunlun"], "write backend=kunlun in place of --backend kunlun"),
        (["--port", "80", "--tp", "2"], "write server.port=80 runtime.tp_size=2 in place of --port 80 --tp 2"),
        (["--disable-cuda-graph", "chip=h100"], "write runtime.disable_cuda_graph=true in place of"),
        (["--device-groups", "cuda:0;cuda:1"], """write groups="'cuda:0;cuda:1'" in place of"""),
        (["--model-path", "/data/m"], "write model=/data/m in place of"),
        (["--max_running_requests", "8"], "write runtime.max_running_requests=8"),
        (["--chunked-prefil-size", "4096"], "did you mean runtime.chunked_prefill_size=...?"),
        (["-p", "80"], "flag -p is unknown; settings are typed as key=value"),
    ],
)
def test_flags_in_the_gnu_style_get_the_override_to_type(words: list[str], override: str) -> None:
    assert override in refusal("serve", *words)


def test_no_key_is_suggested_that_nobody_may_type() -> None:
    assert refusal("tune", "study.objectives=[a]") == "unknown key 'study.objectives'; did you mean 'objective'?"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["kunlun"], "'kunlun' is not of the form key=value"),
        (["chip"], "write chip=VALUE"),
        (["port=80"], "did you mean 'server.port'?"),
        (["~chip"], "does not do"),
        (["chip@other=h100"], "write chip=h100"),
        (["profile=cpu/smollm2"], "write profiles=chip/model"),
        (["hydra.verbose=true"], "unknown key 'hydra.verbose'"),
        (["workload=chat"], "it belongs to `sglk bench`, `sglk tune`"),
        (["chip="], "is not the name of an option"),
        (["chip=[h100]"], "is not the name of an option"),
        (["runtime={chunked_prefil_size: 1}"], "did you mean 'runtime.chunked_prefill_size'?"),
    ],
)
def test_other_words_are_refused_with_a_way_out(words: list[str], part: str) -> None:
    assert part in refusal("serve", *words)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("chip=kunlum", ("did you mean 'kunlun'?", "`sglk chips` lists all")),
        ("model=smolm2", ("did you mean 'smollm2'?", "`sglk models` lists all")),
        ("backend=cuad", ("did you mean 'cuda'?", "cpu (built-in)", "another environment")),
        ("runtime=defualt", ("did you mean 'default'?",)),
        ("profiles=cpu/no-such-model", ("searched", "none")),
    ],
)
def test_an_unknown_option_lists_what_is_near_and_how_to_see_all(word: str, parts: tuple[str, ...]) -> None:
    message = refusal("serve", word)
    assert message.startswith(f"{word} is unknown")
    for part in parts:
        assert part in message


def test_several_values_are_for_the_search_space() -> None:
    message = refusal("tune", "runtime.chunked_prefill_size=512,1024")
    assert "search.space.runtime.chunked_prefill_size=[512,1024]" in message


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("runtime.page_size=16,32", "gives several values; choose one of them"),
        ("runtime.page_size=range(1,4)", "gives several values; choose one of them"),
        ("runtime.disable_radix_cache=true,false", "choose one of them"),
        ("model=a,b", "type model=\"'a,b'\" if it is one"),
        ("groups=cpu:0,cpu:1", "type groups=\"'cpu:0,cpu:1'\" if it is one"),
        ("objective.goals=maximize:goodput,minimize:ttft_s_p99", "type objective.goals=[maximize:goodput,minimize:"),
        ("objective.goals=[a", "is not a list (text each); type objective.goals=[A,B]"),
        ("runtime.page_size=16)", "is not an integer"),
        ("search.space.runtime.page_size=16", "is not a list of candidates; type search.space.runtime.page_size=[A,B]"),
        ("search.space.runtime.page_size=null", "is not a list of candidates"),
        ("search.space.runtime.page_size=[16", "is not a list (any value each); type search.space.runtime.page_size=["),
        ("search.space.runtime.page_size=16,32", "type search.space.runtime.page_size=[16,32] for a list"),
    ],
)
def test_the_advice_fits_the_type_of_the_key(word: str, advice: str) -> None:
    assert advice in refusal("tune", word)


@pytest.mark.parametrize("value", ["2", "-1", "0.5", "nan"])
def test_a_number_is_no_truth_value(value: str) -> None:
    message = f"runtime.disable_radix_cache={value} is not true or false"
    assert refusal("serve", f"runtime.disable_radix_cache={value}") == message


def test_a_dimension_of_the_search_space_is_set_by_its_own_key() -> None:
    words = ["search.space.runtime.chunked_prefill_size=[256,768]", "search.space.runtime.page_size=[16,32]"]
    space = compose("tune", words).config.search.space
    assert space["runtime.chunked_prefill_size"] == [256, 768]
    assert space["runtime.page_size"] == [16, 32]
    assert space["runtime.schedule_policy"] == ["fcfs", "lpm"]


def test_text_that_looks_like_a_number_stays_as_typed() -> None:
    config = compose("serve", ["server.served_model_name=1e5", "server.api_key=1_000"]).config
    assert config.server.served_model_name == "1e5"
    assert config.server.api_key == "1_000"


@pytest.mark.parametrize(
    "words",
    [
        ["backend.deny={attention_decode: {provider: kunlun_ops, reason: wrong}}"],
        ["backend.deny.attention_decode.provider=kunlun_ops", "backend.deny.attention_decode.reason=wrong"],
    ],
)
def test_an_entry_of_a_mapping_can_be_typed_whole_or_key_by_key(words: list[str]) -> None:
    deny = compose("serve", words).config.backend.deny
    assert deny == {"attention_decode": DenyConfig(provider="kunlun_ops", reason="wrong")}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("backend.deny.rope=wrong", "backend.deny.rope=wrong is not a mapping; it has the keys provider, reason"),
        ("backend.deny.rope.provider=a", "no value for backend.deny.rope.reason; write backend.deny.rope.reason=VALUE"),
        ("backend.deny.rope.resn=a", "unknown key 'backend.deny.rope.resn'; see --help for all keys"),
    ],
)
def test_an_unsound_entry_of_a_mapping_is_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("serve", [word])
    assert str(caught.value) == message
