"""Files are replaced whole; what is no file is written to, never replaced."""

import os
import threading
from pathlib import Path

import pytest

from sglk.atomic_file import obstacle, write_text


def test_a_file_and_its_folders_are_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a/b.txt"
    for text in ("old", "new é"):
        write_text(path, text)
    assert path.read_text(encoding="utf-8") == "new é"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join(20)
    assert got == ["text"]
    assert pipe.is_fifo()


def test_a_link_to_itself_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        write_text(tmp_path / "loop/file", "text")


def test_obstacles_are_seen_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert obstacle(tmp_path / "new/deep/file") is None
    assert obstacle(tmp_path / "file") is None
    assert obstacle(tmp_path) == "it is a folder"
    assert "is no folder" in (obstacle(tmp_path / "file/below") or "")
