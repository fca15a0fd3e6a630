import dataclasses
from itertools import pairwise

import pytest

from sglk.bench.prompts import Draw, Vocabulary, all_below
from sglk.bench.workload import Conversation, Medium, Plan, plan, workload_hash
from sglk.config.bench_schema import WorkloadConfig
from sglk.errors import ConfigError

WORDS = Medium(None, tokens_per_word=1.0)
TOKENS = Medium(Vocabulary(320, frozenset(range(256, 260))))
KINDS = ("random", "shared_prefix", "chat", "long_prompt")
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)
BOTH_MEDIA = pytest.mark.parametrize("medium", [WORDS, TOKENS], ids=["words", "tokens"])


def workload(kind: str = "random", **changes: object) -> WorkloadConfig:
    defaults = WorkloadConfig(
        name="w", kind=kind, num_requests=12, input_len=40, output_len=8, prefix_len=32, turns=3, num_prefixes=4
    )
    return dataclasses.replace(defaults, **changes)  # type: ignore[arg-type]


def openings(conversations: tuple[Conversation, ...]) -> list[object]:
    return [conversation.turns[0].prompt for conversation in conversations]


def all_lengths(drawn: Plan) -> list[tuple[int, int]]:
    return [(len(turn.prompt.token_ids), turn.output_len) for talk in drawn.measured for turn in talk.turns]


@ALL_KINDS
@BOTH_MEDIA
def test_the_seed_alone_decides(kind: str, medium: Medium) -> None:
    assert plan(workload(kind), medium) == plan(workload(kind), medium)
    assert plan(workload(kind), medium) != plan(workload(kind, seed=1), medium)


@ALL_KINDS
@BOTH_MEDIA
def test_the_salt_changes_every_prompt_and_no_length(kind: str, medium: Medium) -> None:
    config = workload(kind, range_ratio=0.5)
    plain, salted = plan(config, medium), plan(config, medium, salt="a")
    assert salted == plan(config, medium, salt="a")
    assert not set(openings(plain.measured)) & set(openings(salted.measured))
    assert all_lengths(plain) == all_lengths(salted)


def test_the_same_requests_on_every_machine_for_ever() -> None:
    # Records of different machines are compared by the workload's hash, so this may only change with GENERATOR.
    drawn = plan(workload(), TOKENS)
    assert drawn.measured[0].turns[0].prompt.token_ids[:8].tolist() == [52, 99, 145, 124, 57, 203, 264, 155]
    chat = plan(workload("chat"), WORDS)
    assert (
        chat.measured[0]
        .turns[0]
        .prompt.messages[1]
        .content.startswith("Case 270f2143. Every box on the upper shelf carries")
    )
    assert Draw("a", 1).below(1000) == 331


def test_numbers_drawn_at_once_are_those_drawn_one_by_one() -> None:
    one, other = Draw("a", 1), Draw("a", 1)
    assert other.unit() == one.unit()
    assert all_below(50_000, other.bits(1000)).tolist() == [one.below(50_000) for _ in range(1000)]
    assert all_below(7, other.bits(1)).tolist() == [one.below(7)]
    assert other.below(7) == one.below(7)


@pytest.mark.parametrize("special_ids", [frozenset(), frozenset({700, 9000})])
def test_prompts_drawn_together_are_those_drawn_alone(special_ids: frozenset[int]) -> None:
    vocabulary, lengths = Vocabulary(32_000, special_ids), [7, 1, 0, 600, 33]
    alone = [vocabulary.draw(Draw("a", number), length) for number, length in enumerate(lengths)]
    together = vocabulary.draw_each([Draw("a", number) for number in range(len(lengths))], lengths)
    assert together == alone
    assert [len(packed) // 4 for packed in together] == lengths


@pytest.mark.parametrize("input_len", [4, 700, 20_000])
def test_the_prompts_of_a_workload_do_not_depend_on_how_many_are_drawn(input_len: int) -> None:
    """Few are drawn at once where they are long."""
    medium = Medium(Vocabulary(32_000))
    few, many = (plan(workload("random", num_requests=count, input_len=input_len), medium) for count in (3, 70))
    assert many.measured[:3] == few.measured
    assert len({conversation.turns[0].prompt for conversation in many.measured}) == 70


@ALL_KINDS
@BOTH_MEDIA
def test_all_requests_are_there(kind: str, medium: Medium) -> None:
    drawn = plan(workload(kind, num_requests=10), medium)
    assert sum(len(conversation.turns) for conversation in drawn.measured) == 10
    assert len(drawn.warmup) == workload().warmup_requests
    assert all(len(conversation.turns) == 1 for conversation in drawn.warmup)


@ALL_KINDS
@BOTH_MEDIA
def test_warmup_prompts_are_not_measured(kind: str, medium: Medium) -> None:
    drawn = plan(workload(kind, warmup_requests=30), medium)
    assert len(drawn.warmup) == 30
    assert not set(openings(drawn.warmup)) & set(openings(drawn.measured))


def test_warmup_avoids_the_measured_even_where_few_prompts_exist() -> None:
    medium = Medium(Vocabulary(32, frozenset(range(20))))
    drawn = plan(workload(input_len=1, num_requests=4, warmup_requests=4), medium)
    assert not set(openings(drawn.warmup)) & set(openings(drawn.measured))


def test_warmup_that_cannot_avoid_the_measured_is_refused() -> None:
    medium = Medium(Vocabulary(32, frozenset(range(31))))
    with pytest.raises(ConfigError, match=r"workload\.input_len=1 leaves no other prompts"):
        plan(workload(input_len=1), medium)


def test_token_prompts_have_the_length_asked_for_and_only_ordinary_tokens() -> None:
    special = frozenset({100, 101})
    drawn = plan(workload(num_requests=50), Medium(Vocabulary(320, special)))
    ids = [token for talk in drawn.measured for token in talk.turns[0].prompt.token_ids]
    assert len(ids) == 50 * 40
    assert not special & set(ids)
    # The ends, where special tokens usually are, stay out too.
    assert 5 <= min(ids) < 30
    assert 290 < max(ids) < 315


def test_lengths_fill_the_range() -> None:
    lengths = all_lengths(plan(workload(num_requests=400, range_ratio=0.5), TOKENS))
    assert {input_len for input_len, _ in lengths} == set(range(20, 41))
    assert {output_len for _, output_len in lengths} == set(range(4, 9))


def test_prefixes_are_shared_equally_and_the_rest_is_not() -> None:
    drawn = plan(workload("shared_prefix"), TOKENS)
    prompts = [tuple(talk.turns[0].prompt.token_ids) for talk in drawn.measured]
    prefixes = [prompt[:32] for prompt in prompts]
    assert [len(prompt) for prompt in prompts] == [72] * 12
    assert len(set(prefixes)) == 4
    assert all(prefixes.count(prefix) == 3 for prefix in prefixes)
    assert len({prompt[32:] for prompt in prompts}) == 12
    assert {talk.shared_tokens for talk in drawn.measured} == {32}
    # Rounds start anywhere, so no prefix always comes after the same one.
    assert len(set(pairwise(prefixes))) > 4


def test_prefixes_of_the_warmup_are_its_own() -> None:
    drawn = plan(workload("shared_prefix"), TOKENS)
    measured = {tuple(talk.turns[0].prompt.token_ids[:32]) for talk in drawn.measured}
    assert not measured & {tuple(talk.turns[0].prompt.token_ids[:32]) for talk in drawn.warmup}


def test_conversations_have_a_system_prompt_and_turns() -> None:
    drawn = plan(workload("chat", num_prefixes=2), WORDS)
    assert [len(talk.turns) for talk in drawn.measured] == [3, 3, 3, 3]
    roles = [[message.role for message in turn.prompt.messages] for turn in drawn.measured[0].turns]
    assert roles == [["system", "user"], ["user"], ["user"]]
    systems = {talk.turns[0].prompt.messages[0].content for talk in drawn.measured}
    assert len(systems) == 2
    users = [turn.prompt.messages[-1].content for talk in drawn.measured for turn in talk.turns]
    assert len({text.split(".")[0] for text in users}) == 12


def test_conversations_without_a_system_prompt() -> None:
    drawn = plan(workload("chat", prefix_len=0), WORDS)
    assert [message.role for message in drawn.measured[0].turns[0].prompt.messages] == ["user"]


@pytest.mark.parametrize("tokens", [8, 30, 64, 500])
def test_texts_have_about_the_length_asked_for(tokens: int) -> None:
    drawn = plan(workload("chat", input_len=tokens, turns=1), Medium(None, tokens_per_word=2.0))
    for talk in drawn.measured:
        # The code at the start stands for six words and is written as two.
        words = len(talk.turns[0].prompt.messages[-1].content.split()) + 4
        assert words == max(7, tokens // 2)


@ALL_KINDS
def test_the_hash_is_that_of_the_requests(kind: str) -> None:
    base = workload(kind)
    assert workload_hash(base) == workload_hash(dataclasses.replace(base, name="other"))
    assert len(workload_hash(base)) == 64
    for field in dataclasses.fields(WorkloadConfig):
        if field.name in ("name", "file"):
            continue
        value = {"kind": "x", "arrival": "poisson", "rate": 2.0}.get(field.name, 99)
        assert workload_hash(dataclasses.replace(base, **{field.name: value})) != workload_hash(base)
