"""Files are written atomically and durably, never through a symbolic link."""

import errno
import os
import stat
import threading
import time

import pytest

from homespun.core.errors import DiskError
from homespun.data import spectrogram_set
from homespun.system import disk
from homespun.system.disk import LEFTOVER_S, draft_folder, make_folder, open_file, write_whole
from homespun.system.json_files import write_json


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def names(folder):
    return sorted(os.listdir(folder))


def test_a_link_with_the_name_that_a_draft_once_had_is_not_written_through(tmp_path, victim):
    (tmp_path / ".settings.json.part").symlink_to(victim)
    write_json(tmp_path / "settings.json", {"schema": 1})
    assert victim.read_text() == "precious"
    assert (tmp_path / "settings.json").read_text() == '{\n "schema": 1\n}\n'


def test_draft_names_are_unpredictable(tmp_path, monkeypatch):
    drafts, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda draft, path: (drafts.append(draft.name), replace(draft, path)))
    for _ in range(2):
        write_whole(tmp_path / "a.json", "{}")
    assert drafts[0] != drafts[1]
    assert all(len(name) == len(".a.json..part") + 16 for name in drafts)


def test_a_link_at_the_name_itself_is_replaced_by_the_file(tmp_path, victim):
    (tmp_path / "a.json").symlink_to(victim)
    write_whole(tmp_path / "a.json", "new")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "a.json").is_symlink() and (tmp_path / "a.json").read_text() == "new"


def test_modes(tmp_path):
    previous = os.umask(0o027)
    try:
        write_whole(tmp_path / "usual", "")
        write_whole(tmp_path / "own", b"", mode=0o600)
    finally:
        os.umask(previous)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "own")] == [0o640, 0o600]


def test_the_file_is_synced_before_it_gets_its_name_and_the_folder_after(tmp_path, monkeypatch):
    calls, sync, replace = [], os.fsync, os.replace

    def synced(handle):
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else os.fstat(handle).st_size)
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("rename"), replace(*names)))
    write_whole(tmp_path / "a.json", b"12345")
    assert calls == [5, "rename", "folder"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "the disk is full. Make room"), (errno.EIO, r"cannot be written \(Input/output error\). Check")],
)
def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch, call, number, said):
    write_whole(tmp_path / "a.json", "old")

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(DiskError, match=f"a.json: {said}"):
        write_whole(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old" and names(tmp_path) == ["a.json"]


def test_a_draft_that_a_kill_left_is_removed_later(tmp_path, victim):
    left, young = tmp_path / f".a.json.{'0' * 16}.part", tmp_path / f".a.json.{'1' * 16}.part"
    other, link = tmp_path / f".b.json.{'0' * 16}.part", tmp_path / f".a.json.{'2' * 16}.part"
    for path in (left, young, other):
        path.write_text("half")
    link.symlink_to(victim)
    old = time.time() - LEFTOVER_S - 1
    for path in (left, other, link):
        os.utime(path, (old, old), follow_symlinks=False)
    write_whole(tmp_path / "a.json", "whole")
    assert names(tmp_path) == sorted([young.name, other.name, "a.json", "victim"])
    assert victim.read_text() == "precious"


def test_several_writers_at_once_do_not_break_each_other(tmp_path):
    contents, failed = [letter * 50_000 for letter in "abc"], []

    def write(content):
        try:
            for _ in range(30):
                write_whole(tmp_path / "a.txt", content)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert (tmp_path / "a.txt").read_text() in contents and names(tmp_path) == ["a.txt"]


def test_opening_rejects_links_and_special_files(tmp_path, victim):
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DiskError, match=r"link: a symbolic link.* Remove the link, or replace it with the"):
        open_file(tmp_path / "link")
    with pytest.raises(DiskError, match=r"pipe: not a regular file"):
        open_file(tmp_path / "pipe")
    with open_file(tmp_path / "new", mode=0o600) as file:
        assert os.get_inheritable(file.fileno()) is False
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    with draft_folder(tmp_path / "made") as draft:
        (draft / "inside").write_text("x")
        assert stat.S_IMODE(draft.stat().st_mode) == 0o700 and not (tmp_path / "made").exists()
    assert names(tmp_path) == ["made"] and names(tmp_path / "made") == ["inside"]
    with pytest.raises(KeyError), draft_folder(tmp_path / "other") as draft:
        (draft / "inside").write_text("x")
        raise KeyError
    assert names(tmp_path) == ["made"]


def test_a_folder_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(disk, "sync", lambda path: synced.append((path.name, (tmp_path / "made").exists())))
    with draft_folder(tmp_path / "made") as draft:
        (draft / "inside").write_text("x")
    assert synced == [("inside", False), (draft.name, False), (tmp_path.name, True)]


def test_folders_are_made_and_synced_with_the_missing_ones_above(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(disk, "sync", synced.append)
    make_folder(tmp_path / "a" / "b", mode=0o700)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert synced == [tmp_path / "a", tmp_path]
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_an_unfinished_set_of_voices_follows_no_link(tmp_path, victim):
    (tmp_path / "spectrograms.npy.part").symlink_to(victim)
    with pytest.raises(DiskError, match=r"spectrograms\.npy\.part: a symbolic link"), spectrogram_set._draft(tmp_path):
        pass
    assert victim.read_text() == "precious"
