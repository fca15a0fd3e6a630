"""Prompts in chunks, alone and mixed with decodes."""

import logging

import pytest

from tests.engine.scheduling import LONG, Rig, alone, answer, greedy, prompt


@pytest.mark.parametrize(("count", "mixed"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize(
    ("chunk", "cap"), [(64, 32), (-1, 64), (128, 16384), (129, 256), (130, 256), (1, 256), (64, 64)]
)
def test_chunking_changes_no_token(chunk: int, cap: int, count: int, mixed: bool) -> None:
    rig = Rig(chunked_prefill_size=chunk, max_prefill_tokens=cap, enable_mixed_chunk=mixed)
    for index in range(count):
        rig.add(str(index), prompt(130, index))

    answers = rig.finish()

    assert answers == {str(index): alone(prompt(130, index)) for index in range(count)}
    limit = 130 if chunk == -1 else min(chunk, cap)
    assert max(len(row.input_ids) for batch in rig.batches for row in batch.rows) == min(limit, 130)
    longest = max(cap, 130 if chunk == -1 else 0) + (count if mixed else 0)
    assert all(batch.num_tokens <= longest for batch in rig.batches)


def test_chunk_beyond_the_cap_is_clamped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="sglk"):
        Rig(chunked_prefill_size=64, max_prefill_tokens=32)

    assert [record.getMessage() for record in caplog.records] == [
        "runtime.chunked_prefill_size=64 is above max_prefill_tokens=32; using 32"
    ]


@pytest.mark.parametrize("mixed", [False, True])
def test_decoding_goes_on_between_the_chunks_of_a_long_prompt(mixed: bool) -> None:
    rig = Rig(chunked_prefill_size=8, enable_mixed_chunk=mixed)
    talker = rig.add("talker", prompt(4), greedy(40))
    rig.step()
    rig.batches.clear()
    rig.add("long", prompt(160))
    while not answer(rig.live["long"]):
        rig.step()

    # 20 chunks, and a decode step after each but the last, or a token beside each chunk.
    assert len(answer(talker)) == 1 + 20
    assert len(rig.batches) == (20 if mixed else 40)


@pytest.mark.parametrize(("mixed", "tokens"), [(False, 21), (True, 41)])
def test_decoding_goes_on_while_requests_keep_arriving(mixed: bool, tokens: int) -> None:
    rig = Rig(pool_tokens=32768, max_running_requests=100, enable_mixed_chunk=mixed)
    talker = rig.add("talker", prompt(4), greedy(50))
    for index in range(41):
        rig.add(str(index), prompt(4, index), LONG)
        rig.step()

    assert len(answer(talker)) == tokens


def test_mixed_step_takes_the_tokens_of_decodes_off_its_chunk_in_whole_pages() -> None:
    rig = Rig(chunked_prefill_size=48, page_size=16, enable_mixed_chunk=True)
    for index in range(3):
        rig.add(str(index), prompt(4, index), LONG)
    rig.step()
    rig.add("long", prompt(100, 9))
    sizes = []
    while "long" not in rig.scheduler.decoding:
        rig.step()
        sizes.append((len(rig.batches[-1].rows[0].input_ids), rig.batches[-1].num_tokens))

    assert sizes == [(32, 35), (32, 35), (32, 35), (4, 7)]


def test_mixed_step_takes_the_tokens_of_decodes_off_its_budget() -> None:
    rig = Rig(max_prefill_tokens=32, chunked_prefill_size=32, page_size=1, enable_mixed_chunk=True)
    for index in range(8):
        rig.add(str(index), prompt(4, index), LONG)
    rig.step()
    for index in range(3):
        rig.add(f"more {index}", prompt(10, 10 + index), LONG)
    rig.step()

    # 8 decodes leave 24 of 32 tokens, which two prompts of 10 fit.
    assert (rig.batches[-1].num_prefills, rig.batches[-1].num_tokens) == (2, 28)


def test_mixed_step_makes_progress_however_many_decode() -> None:
    rig = Rig(chunked_prefill_size=16, max_prefill_tokens=16, page_size=16, enable_mixed_chunk=True)
    names = [str(index) for index in range(20)]
    for name in names:
        rig.add(name, prompt(4, int(name)), LONG)
        rig.step()
    rig.add("long", prompt(32, 99))
    rig.step()

    assert rig.batches[-1].num_prefills == 1
    assert rig.batches[-1].num_tokens == 16 + 20


def test_short_prompts_join_the_step_of_a_long_one_and_two_long_ones_do_not_mix() -> None:
    rig = Rig(chunked_prefill_size=32, max_prefill_tokens=64)
    for name, length in {"long": 100, "short": 10, "longer": 120}.items():
        rig.add(name, prompt(length))
    rig.step()

    assert [row.request_id for row in rig.batches[-1].rows] == ["long", "short"]
    rig.finish()
    partial = [{row.request_id for row in batch.rows if not row.samples} for batch in rig.batches]
    assert all(len(names) <= 1 for names in partial)
