"""With FEDLOOM_SCRATCH, jobs read large inputs from copies on their node's own disk."""

import os
import stat
from pathlib import Path

import pytest

from fedloom.common import io
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import sha256, write_receipt
from fedloom.common.scratch import folder, nearest


@pytest.fixture
def stored(tmp_path):
    """A file of the shared file system, with its receipt."""
    path = tmp_path / "shared/images.arrow"
    path.parent.mkdir()
    path.write_bytes(bytes(range(256)) * 100)
    write_receipt(path, classes=["a", "b"])
    return path


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    folder = tmp_path / "node"
    folder.mkdir()
    monkeypatch.setenv("FEDLOOM_SCRATCH", str(folder))
    return folder


def copies(scratch: Path) -> list[Path]:
    files = (path for path in scratch.rglob("*") if path.is_file())
    return sorted(path for path in files if path.suffix != ".lock")


@pytest.mark.parametrize("value", [None, ""])
def test_without_it_files_are_read_where_they_are(stored, monkeypatch, value):
    if value is None:
        monkeypatch.delenv("FEDLOOM_SCRATCH", raising=False)
    else:
        monkeypatch.setenv("FEDLOOM_SCRATCH", value)
    path, facts = nearest(stored)
    assert path == stored and facts["classes"] == ["a", "b"]
    stored.write_bytes(b"other")
    with pytest.raises(FedLoomError, match=r"images.arrow: "):
        nearest(stored)


def test_the_first_job_copies_and_others_read_the_copy_alone(stored, scratch):
    path, facts = nearest(stored)
    assert copies(scratch) == [path]
    assert path.read_bytes() == stored.read_bytes()
    assert (path.stem, path.suffix) == (facts["sha256"], ".arrow")
    stored.unlink()
    assert nearest(stored) == (path, facts)


def test_a_damaged_copy_is_made_again(stored, scratch):
    path, _ = nearest(stored)
    path.write_bytes(path.read_bytes()[:-1])
    assert nearest(stored)[0] == path
    assert sha256(path) == sha256(stored)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"half"), Path.unlink])
def test_no_copy_is_left_of_what_the_receipt_does_not_describe(stored, scratch, damage):
    damage(stored)
    with pytest.raises(FedLoomError, match=r"shared/images.arrow: "):
        nearest(stored)
    assert copies(scratch) == []


def test_a_file_that_was_made_anew_is_copied_anew(stored, scratch):
    before, _ = nearest(stored)
    stored.write_bytes(b"another dataset")
    write_receipt(stored)
    after, _ = nearest(stored)
    assert after != before and after.read_bytes() == b"another dataset"


def test_its_variables_are_filled_in_on_the_node(stored, scratch, monkeypatch):
    monkeypatch.setenv("LOCAL_DISK", str(scratch))
    monkeypatch.setenv("FEDLOOM_SCRATCH", "$LOCAL_DISK")
    assert nearest(stored)[0].parent == scratch / f"fedloom-{os.getuid()}"


# the kernel's own folder takes no other, not even root's
@pytest.mark.parametrize("named", ["/no/such/folder", "/proc"])
def test_a_folder_that_takes_no_copies_is_named(stored, monkeypatch, named):
    monkeypatch.setenv("FEDLOOM_SCRATCH", named)
    with pytest.raises(FedLoomError, match=rf"^FEDLOOM_SCRATCH: [^\n]*{named}"):
        nearest(stored)


def test_copies_lie_in_a_folder_to_which_nobody_else_can_write(stored, scratch):
    before = os.umask(0)
    try:
        nearest(stored)
    finally:
        os.umask(before)
    assert stat.S_IMODE((scratch / f"fedloom-{os.getuid()}").stat().st_mode) == 0o700


@pytest.mark.parametrize("trap", ["file", "link", "another user's", "writable to others"])
def test_a_folder_that_another_user_made_is_not_used(trap, stored, scratch, tmp_path, monkeypatch):
    """With links in it, or as one, it would make a job overwrite the files of who runs it."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    if trap == "another user's":
        somebody = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: somebody)
    mine = scratch / f"fedloom-{os.getuid()}"
    if trap == "file":
        mine.write_text("a file")
    elif trap == "link":
        mine.symlink_to(theirs)
    else:
        mine.mkdir()
        mine.chmod(0o777 if trap == "writable to others" else 0o700)
    for call in (folder, lambda: nearest(stored)):
        with pytest.raises(FedLoomError, match=rf"^FEDLOOM_SCRATCH: {mine} "):
            call()
    assert not [*theirs.iterdir()] and (trap == "file" or not [*mine.iterdir()])


def test_no_file_is_written_through_a_link(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "copy.arrow"
    victim.write_text("mine")
    (tmp_path / f".copy.arrow.{io.host()}.{os.getpid()}.tmp").symlink_to(victim)
    io.write_text(path, "theirs")
    assert (victim.read_text(), path.read_text()) == ("mine", "theirs")
    assert not path.is_symlink()
