"""Files are replaced whole; what is no file is written to, never replaced."""

import fcntl
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglk import atomic_file
from sglk.atomic_file import obstacle, one_at_a_time, write_text


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
    reader.join(120)
    assert got == ["text"]
    assert pipe.is_fifo()


def test_a_link_to_itself_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop/file", tmp_path / "loop"):
        with pytest.raises(OSError, match="loop"):
            write_text(path, "text")
        assert obstacle(path) == f"{str(path)!r}: Too many levels of symbolic links"
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize(("name", "why"), [("a\0b", "no name of a file (embedded null"), ("x" * 256, "File name")])
def test_a_name_that_no_file_has_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    # As newer versions of Python see it.
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.setattr(Path, "is_dir", os.path.isdir)
    with pytest.raises(OSError, match=re.escape(why)):
        write_text(tmp_path / name, "text")
    assert why in (obstacle(tmp_path / name) or "")


def test_a_file_that_is_a_mount_is_written_to_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, mounts = tmp_path / "a b.yaml", tmp_path / "mounts"
    place = str(path).replace(" ", "\\040")
    mounts.write_text(f"22 1 0:20 / / rw - ext4 /dev/sda rw\n36 22 0:20 /x {place} rw - ext4 /dev/sda rw\n")
    monkeypatch.setattr(atomic_file, "_MOUNTS", mounts)
    path.write_text("old")
    before = path.stat().st_ino
    assert obstacle(path) is None
    write_text(path, "new")
    assert (path.read_text(), path.stat().st_ino) == ("new", before)


def test_obstacles_are_seen_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert obstacle(tmp_path / "new/deep/file") is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert obstacle(tmp_path / "file") is None
    assert obstacle(tmp_path) == "it is a folder"
    assert "is no folder" in (obstacle(tmp_path / "file/below") or "")


def test_what_cannot_be_seen_but_by_writing_is_seen(tmp_path: Path, fill_disk: Callable[[int], None]) -> None:
    # Root may write anywhere, says the system, but not into the folder of processes.
    assert obstacle(Path("/proc/new/file")) == "no file can be made in '/proc': No such file or directory"
    assert (obstacle(tmp_path / ("x" * 256)) or "").endswith("File name too long")
    fill_disk(0)
    assert obstacle(tmp_path / "file") == f"no file can be made in {str(tmp_path)!r}: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_what_a_link_of_the_system_leads_to_is_written_to(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    path = Path(f"/dev/fd/{writer}")
    assert obstacle(path) is None
    write_text(path, "text")
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "text"


def test_a_file_that_only_its_owner_may_replace_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert obstacle(tmp_path / "file") is None
    tmp_path.chmod(0o1777)
    assert "is another user's, and in" in (obstacle(tmp_path / "file") or "")
    assert obstacle(tmp_path / "new") is None


def test_a_folder_that_may_not_be_looked_into_is_an_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, **_: Any) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refused)
        why = obstacle(tmp_path / "file")
    assert why == f"{str(tmp_path / 'file')!r}: Permission denied"


def test_one_at_a_time_reads_and_writes_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with one_at_a_time(folder), pytest.raises(BlockingIOError):
        lock(folder)
    lock(folder)


def lock(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
