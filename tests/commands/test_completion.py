"""Completion: the words themselves, and a real bash that asks for them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglk.cli import COMMANDS, main
from sglk.commands.completion import SCRIPTS
from sglk.commands.words import candidates


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["se"], ["serve"]),
        (["serve", "chip=kun"], ["chip=kunlun", "chip=kunlun_p800"]),
        (["serve", "runtime.chunked"], ["runtime.chunked_prefill_size="]),
        (["serve", "runtime.schedule_policy=l"], ["runtime.schedule_policy=lpm"]),
        (
            ["serve", "chip=cpu", "runtime.disable_radix_cache="],
            [f"runtime.disable_radix_cache={v}" for v in ("true", "false")],
        ),
        (["serve", "workload="], []),
        (["bench", "workload=ch"], ["workload=chat"]),
        (["show", "--j"], ["--json"]),
        (["--config-dir", "conf", "show", "--j"], ["--json"]),
        (["show", "--command", "t"], ["tune"]),
        (["completion", "b"], ["bash"]),
        (["chips", ""], []),
        (["traffic", "r"], ["rollback", "restart", "ramp"]),
        (["traffic", "ramp", ""], ["stop", "show"]),
        (["traffic", "drain", ""], []),
    ],
)
def test_candidates(words: list[str], expected: list[str]) -> None:
    assert candidates(words) == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dash_offers_every_flag_of_the_command_s_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out))
    assert told <= set(candidates([command, "--"]))


def test_an_empty_word_offers_groups_and_nodes() -> None:
    offered = candidates(["serve", ""])
    assert {"chip=", "model=", "profiles=", "groups=", "runtime.", "server."} <= set(offered)
    assert candidates([""])[:2] == ["serve", "bench"]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "completion --words" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, capture_output=True)


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    assert "did you mean 'bash'?" in capsys.readouterr().err
    assert main(["completion"]) == 2
    capsys.readouterr()
    assert main(["completion", "bash", "zsh"]) == 2
    assert "leave out zsh" in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sglk sh", ["show"]),
        ("sglk serve chip=kun", ["kunlun", "kunlun_p800"]),
        ("sglk serve runtime.page", ["runtime.page_size="]),
    ],
)
def test_bash_completes(line: str, expected: list[str], tmp_path: Path) -> None:
    command = tmp_path / "sglk"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m sglk "$@"\n')
    command.chmod(0o755)
    script = f"""
compopt() {{ :; }}
{SCRIPTS["bash"]}
COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}
_sglk
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env)
    assert result.stdout.split() == expected
