"""A grammar that is too much for the compiler is refused; neither its caller nor the next grammar suffers."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from sglk.engine.grammar_compiler import TokenTable
from sglk.engine.grammar_trial import GrammarTrial
from sglk.engine.messages import Grammar, GrammarKind
from sglk.errors import RequestError
from sglk.models.byte_level import EOS_ID
from sglk.models.dummy_tokenizer import dummy_tokenizer
from tests.processes import is_alive
from tests.waiting import wait_until

TABLE = TokenTable.of(dummy_tokenizer(320), 320, {EOS_ID})
FINE = Grammar("regex", "[a-c]+")

CHAIN = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(1000)}
BOMBS: dict[str, tuple[GrammarKind, str]] = {
    "endless": ("json_schema", '{"type": "integer", "multipleOf": 400000009}'),
    "deep": ("json_schema", json.dumps({"$defs": CHAIN | {"d1000": {}}, "$ref": "#/$defs/d0"})),
    "deep rules": ("ebnf", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(9000)) + 'r9000: "a"'),
}


@pytest.fixture(scope="module")
def trial() -> GrammarTrial:
    return GrammarTrial(TABLE, seconds=5)


def pid_of(trial: GrammarTrial) -> int:
    process = trial._process
    assert process is not None
    return process.pid


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_the_next_grammar_is_tried(trial: GrammarTrial, name: str) -> None:
    bomb = Grammar(*BOMBS[name])
    with pytest.raises(RequestError, match=rf"^the {bomb.kind.replace('_', ' ')} is too complex: .* 5 s") as caught:
        trial.run(bomb)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, bomb.kind, "grammar_too_complex")
    trial.run(FINE)


def test_an_invalid_grammar_passes_for_the_caller_to_find_out(trial: GrammarTrial) -> None:
    trial.run(FINE)
    first = pid_of(trial)
    trial.run(Grammar("regex", "("))
    assert pid_of(trial) == first


def test_a_process_that_was_killed_between_two_grammars_is_replaced(trial: GrammarTrial) -> None:
    trial.run(FINE)
    first = pid_of(trial)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_alive(first))
    trial.run(FINE)
    assert pid_of(trial) != first


def test_threads_take_turns(trial: GrammarTrial) -> None:
    refused: list[str] = []

    def ask(grammar: Grammar) -> None:
        try:
            trial.run(grammar)
        except RequestError:
            refused.append(grammar.text)

    grammars = [FINE, Grammar(*BOMBS["deep"]), Grammar("regex", "d*"), Grammar("choice", '["a"]')]
    threads = [threading.Thread(target=ask, args=(grammar,)) for grammar in grammars]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert refused == [BOMBS["deep"][1]]


def test_a_process_that_cannot_start_is_not_blamed_on_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RequestError, match="its process does not start") as caught:
        GrammarTrial(TABLE).run(FINE)
    assert caught.value.status == 503


OWNER = """
import sys
from tests.engine.test_grammar_trial import *
trial = GrammarTrial(TABLE)
trial.run(FINE)
print(pid_of(trial), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_the_process_ends_with_its_owner(end: str) -> None:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        if end == "kill":
            owner.kill()
        owner.stdin.close()
        owner.wait(120)
    wait_until(lambda: not is_alive(pid))


def test_the_process_ends_with_the_last_user_of_it() -> None:
    trial = GrammarTrial(TABLE)
    trial.run(FINE)
    pid = pid_of(trial)
    del trial
    wait_until(lambda: not is_alive(pid))
