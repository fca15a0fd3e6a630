import json
from pathlib import Path

import pytest

from sglk.bench.arrivals import arrival_times
from sglk.bench.prompts import Vocabulary
from sglk.bench.workload import Medium, plan, workload_hash
from sglk.config.bench_schema import WorkloadConfig
from sglk.config.compose import compose
from sglk.errors import ConfigError

TOKENS = Medium(Vocabulary(50_000))
WORDS = Medium(None, tokens_per_word=1.0)

MOONCAKE = [(0, 1000, 10, [1, 2]), (3000, 1024, 20, [1, 3]), (3500, 700, 5, [1, 2])]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
TALK = [("human", "how are you today"), ("gpt", "fine thanks and you"), ("human", "fine too"), ("gpt", "good")]


def workload(kind: str, file: Path, **changes: object) -> WorkloadConfig:
    given: dict[str, object] = {"num_requests": 2, "concurrency": 0, "warmup_requests": 1} | changes
    return WorkloadConfig(name="w", kind=kind, file=str(file), **given)  # type: ignore[arg-type]


def written(folder: Path, text: str) -> Path:
    file = folder / "trace"
    file.write_text(text)
    return file


def mooncake(rows: list[tuple[int, int, int, list[int]]]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


def sharegpt(*talks: list[tuple[str, str]]) -> str:
    return json.dumps([{"conversations": [{"from": who, "value": text} for who, text in talk]} for talk in talks])


def test_blocks_of_one_name_are_the_same_tokens(tmp_path: Path) -> None:
    file = written(tmp_path, mooncake(MOONCAKE))
    first, second, third = (talk.turns[0] for talk in plan(workload("mooncake", file, num_requests=3), TOKENS).measured)
    ids = [turn.prompt.token_ids for turn in (first, second, third)]
    assert list(map(len, ids)) == [1000, 1024, 700]
    assert [turn.output_len for turn in (first, second, third)] == [10, 20, 5]
    assert ids[0][:512] == ids[1][:512]
    assert ids[0][512:700] == ids[2][512:] != ids[1][512:700]


def test_what_a_trace_shares_on_purpose_is_no_unasked_hit(tmp_path: Path) -> None:
    file = written(tmp_path, mooncake(MOONCAKE))
    drawn = plan(workload("mooncake", file, num_requests=3), TOKENS)
    assert [talk.shared_tokens for talk in drawn.measured] == [0, 512, 700]


@pytest.mark.parametrize(("kind", "text"), [("mooncake", mooncake(MOONCAKE)), ("azure", AZURE)])
def test_requests_come_when_the_trace_says_so(tmp_path: Path, kind: str, text: str) -> None:
    config = workload(kind, written(tmp_path, text), arrival="trace", time_scale=0.5)
    times = arrival_times(config, plan(config, TOKENS).measured)
    assert times == pytest.approx([0.0, 0.5 * {"mooncake": 3.0, "azure": 4.314579}[kind]])


def test_lengths_can_be_cut(tmp_path: Path) -> None:
    file = written(tmp_path, AZURE)
    drawn = plan(workload("azure", file, max_input_len=100, max_output_len=50), TOKENS)
    lengths = [(len(talk.turns[0].prompt.token_ids), talk.turns[0].output_len) for talk in drawn.measured]
    assert lengths == [(100, 44), (100, 50)]


def test_a_conversation_asks_its_questions_for_answers_of_their_length(tmp_path: Path) -> None:
    file = written(tmp_path, sharegpt(TALK, [("system", "be kind"), *TALK[:2]], [("gpt", "nobody asked")]))
    drawn = plan(workload("sharegpt", file, num_requests=3, turns=4), WORDS)
    said = [[turn.prompt.messages[0].content for turn in talk.turns] for talk in drawn.measured]
    assert said == [["how are you today", "fine too"], ["how are you today"]]
    assert [turn.output_len for turn in drawn.measured[0].turns] == [4, 1]


@pytest.mark.parametrize(
    ("kind", "text"), [("mooncake", mooncake(MOONCAKE)), ("azure", AZURE), ("sharegpt", sharegpt(TALK, TALK))]
)
@pytest.mark.parametrize("medium", [TOKENS, WORDS], ids=["tokens", "words"])
def test_salt_and_warm_up_give_other_prompts(tmp_path: Path, kind: str, text: str, medium: Medium) -> None:
    config = workload(kind, written(tmp_path, text))
    plain, salted = plan(config, medium), plan(config, medium, salt="a")
    openings = [{talk.turns[0].prompt for talk in talks} for talks in (plain.measured, plain.warmup, salted.measured)]
    assert not openings[0] & openings[1]
    assert not openings[0] & openings[2]


def test_the_hash_is_that_of_what_is_in_the_file(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    one.write_text(AZURE)
    other.write_text(AZURE)
    assert workload_hash(workload("azure", one)) == workload_hash(workload("azure", other))
    other.write_text(AZURE.replace("374", "375"))
    assert workload_hash(workload("azure", one)) != workload_hash(workload("azure", other))


HEADER = AZURE.partition("\n")[0]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("azure", "", "is empty; give a file with at least one request"),
        ("azure", "\n\n", "is empty"),
        ("azure", HEADER, "has no line below its columns"),
        ("azure", "time,in,out\n1,2,3\n", "has the columns 'time,in,out'; an Azure trace has 'TIMESTAMP,Conte"),
        ("azure", f"{HEADER}\n2023-11-16 18:15:46.68,374\n", "line 2, has 2 values; 3 are needed"),
        ("azure", f"{HEADER}\n2023-11-16 18:15:46.68,,44\n", "line 2, has 2 values; 3 are needed"),
        ("azure", f"{HEADER}\n2023-11-16 18:15:46.68,0,44\n", "line 2: the prompt has 0 tokens, at least 1"),
        ("azure", f"{HEADER}\n2023-11-16 18:15:46.68,9,0\n", "line 2: the answer has 0 tokens"),
        ("azure", f"{HEADER}\n2023-11-16 18:15:46.68,-9,4\n", "ContextTokens is '-9', not a whole number"),
        ("azure", f"{HEADER}\nyesterday,9,4\n", "TIMESTAMP is 'yesterday'"),
        ("azure", AZURE.replace("\n2023-11-16 18:15:50", "\n\n2023-11-16 18:15:50"), "line 3, is blank: requests seem"),
        ("azure", AZURE.replace("18:15:50", "18:15:40"), "line 3, comes 5.68542 s before line 2; sort the trace"),
        (
            "azure",
            AZURE.replace("18:15:50", "19:15:50"),
            "nothing comes for 3604.31 s before line 3, more than a gap of",
        ),
        ("azure", AZURE.rpartition("\n2023")[0], "has 1 requests, fewer than workload.num_requests=2; lower it"),
        ("azure", "\0\1", "has the columns"),
        ("azure", f"{HEADER}\n2023-11-16 18:15:46.68,{'9' * 2**18},44\n", "line 2, is no CSV: field larger than field"),
        ("azure", f"{HEADER}\n{'9' * 2**21}\n", "line 2, is endless; a trace has one request a line"),
        ("mooncake", "timestamp,input_length\n", "line 1, is not JSON; a Mooncake trace has one object a line"),
        ("mooncake", '{"timestamp": 0}\n', "line 1, has timestamp; a Mooncake trace has timestamp, input_length"),
        ("mooncake", "[]\n", "line 1, has list; a Mooncake trace has"),
        ("mooncake", mooncake([(0, 0, 5, [])]), "line 1: the prompt has 0 tokens"),
        ("mooncake", mooncake([(0, 600, 5, [1])]), "1 hash_ids for 600 tokens, which have 2 blocks of 512"),
        ("mooncake", mooncake([(0, 600, 5, ["a", "b"])]), "hash_ids is not a list of whole numbers"),  # type: ignore[list-item]
        ("mooncake", mooncake([(-1, 600, 5, [1, 2])]), "timestamp is -1, not a whole number from 0 up"),
        ("mooncake", mooncake([(None, 600, 5, [1, 2])]), "timestamp is null, not a whole number from 0 up"),
        ("sharegpt", "[]", "is empty"),
        ("sharegpt", "{}", "holds no list"),
        ("sharegpt", "[{}]", "entry 1 has no list `conversations`"),
        ("sharegpt", "no", "is not JSON"),
        ("sharegpt", sharegpt([("human", "hello"), ("gpt", "")]), "has no question with an answer; give another"),
        ("sharegpt", sharegpt([("human", "hi"), ("gpt", "ho")]), "has fewer questions with answers (1) than"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path: Path, kind: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(workload(kind, written(tmp_path, text)), TOKENS)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_gap_is_told_as_long_as_it_is_waited_for(tmp_path: Path) -> None:
    config = workload("azure", written(tmp_path, AZURE), arrival="trace", time_scale=1000)
    with pytest.raises(
        ConfigError, match=r"comes for 4314\.58 s \(4\.31458 s times workload\.time_scale=1000\) before"
    ):
        plan(config, TOKENS)


def test_an_emoji_that_was_cut_is_still_text(tmp_path: Path) -> None:
    file = written(tmp_path, sharegpt([("human", "hello \ud83d"), ("gpt", "yes \ud83d\ude00")]))
    (talk,) = plan(workload("sharegpt", file, num_requests=1), WORDS).measured
    assert talk.turns[0].prompt.messages[0].content.encode() == b"hello ?"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        plan(workload("azure", tmp_path / "none"), TOKENS)
    with pytest.raises(ConfigError, match="File name too long"):
        plan(workload("azure", tmp_path / ("x" * 300)), TOKENS)
    binary = tmp_path / "trace.gz"
    binary.write_bytes(b"\x1f\x8b\xff\xfe")
    with pytest.raises(ConfigError, match="is not text; give the trace itself, unpacked"):
        plan(workload("azure", binary), TOKENS)
    # It never ends, and a pipe would be empty when it is read again.
    with pytest.raises(ConfigError, match="is no file that can be read twice; write what it gives to one"):
        plan(workload("azure", Path("/dev/zero")), TOKENS)


def test_requests_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    file = written(tmp_path, AZURE + "\n\n" + "no request\n" * 9)
    assert len(plan(workload("azure", file, num_requests=2), TOKENS).measured) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["workload=azure"], "workload.kind=azure is made from a file; write workload.file=PATH"),
        (["workload.file=x"], "workload.file='x' has no effect with workload.kind=random"),
        (["workload.arrival=trace"], "workload.arrival=trace needs a trace, workload.kind=random is none"),
        (["workload=azure", "workload.file=x", "workload.time_scale=0"], "workload.time_scale=0 is not a positive"),
        (["workload=azure", "workload.file=x", "workload.max_input_len=0"], "workload.max_input_len=0 is too small"),
    ],
)
def test_settings_that_make_no_sense_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose("bench", words)
    assert message in str(error.value)
