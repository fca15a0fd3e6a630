"""Files mean what OmegaConf says they mean, though another parser reads them."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sglk.config.file_source import FileSource
from sglk.resources import conf_dir


def source(folder: Path) -> FileSource:
    return FileSource("test", f"{FileSource.scheme()}://{folder}")


@pytest.mark.parametrize("path", sorted(file.relative_to(conf_dir()).as_posix() for file in conf_dir().rglob("*.yaml")))
def test_shipped_files_are_read_as_omegaconf_reads_them(path: str) -> None:
    assert source(conf_dir()).load_config(path.removesuffix(".yaml")).config == OmegaConf.load(conf_dir() / path)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1e3\nb: 1_0.5\nc: 2020-01-01\nd: [1, .5]\ne: 0x10\nf: yes\ng: ~\nh: 1:30\n",
        "a: &x {b: 1}\nc: *x\n",
        "",
        "a",
        "a: !\nb: 1\n",
    ],
)
def test_values_are_those_of_omegaconf(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    found, wanted = source(tmp_path).load_config("a").config, OmegaConf.load(tmp_path / "a.yaml")
    assert found == wanted
    assert [type(found[key]) for key in found] == [type(wanted[key]) for key in wanted]


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2\n",
        "a: [\n",
        "a: !!python/object/apply:os.getcwd []\n",
        "a: \x07\n",
        "a:\t1 # one\n",
        "a: 1\n\ufeff",
        "a: |2#-\n",
        "a: >- +#x\n  b\n",
        "a: [b?]\n",
        "a: {b? : 1}\n",
        "%YAML 1.1#\n---\na: 1\n",
    ],
)
def test_refusals_are_those_of_omegaconf_and_name_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(YAMLError) as refused:
        source(tmp_path).load_config("a")
    with pytest.raises(YAMLError) as wanted:
        OmegaConf.load(tmp_path / "a.yaml")
    assert str(refused.value) == str(wanted.value)
    assert "a.yaml" in str(refused.value)


PIECES = (
    *("a", "b: ", "1", "'", '"', "{", "}", "[", "]", ",", ":", ": ", "-", "- ", "\n", "\n  ", "\n ", " ", "#", " # "),
    *("&x ", "*x", "|", "|-", "|2", ">", "> ", "%", "%YAML 1.1\n", "---", "--- ", "...\n", "\\", "\\n", "\\x41", "\r"),
    *(
        "\x85",
        "\u2028",
        "\x7f",
        "<<: *x",
        "=",
        "~",
        "null",
        "@",
        "1:30",
        ".5",
        "1_0",
        "?",
        "? ",
        "!",
        "!!str ",
        "\t",
        "+",
    ),
)


@pytest.mark.parametrize("seed", range(4))
def test_texts_of_any_pieces_are_taken_and_refused_as_omegaconf_does(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    file = tmp_path / "a.yaml"
    for _ in range(400):
        file.write_text("k: 1\nl: " + "".join(chance.choices(PIECES, k=chance.randrange(1, 10))), encoding="utf-8")
        assert outcome(lambda: source(tmp_path).load_config("a").config) == outcome(lambda: OmegaConf.load(file))


def outcome(load: Callable[[], object]) -> str:
    """Return what a file holds, or why it is refused."""
    try:
        return repr(load())
    except (YAMLError, OmegaConfBaseException) as error:
        return f"{type(error).__name__}: {error}"
