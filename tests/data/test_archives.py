"""Archives of data sets: whole, or refused in a line."""

import gzip
import io
import random
import shutil
import stat
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archives_on_disk import archive_of
from fedloom.common.errors import FedLoomError
from fedloom.data import archives
from fedloom.data.archives import USUAL_UNPACK_LIMITS, UnpackLimits, unpack
from refusals import refused

LETTERS = {f"{n}.png": bytes([n]) * 300 for n in range(4)}
LETTERS |= {"more/in.png": b"x" * 50, "last.png": b"y" * 300}
WHOLE = {kind: archive_of(kind, LETTERS) for kind in ("zip", "tar")}
WHOLE["plain"] = gzip.decompress(WHOLE["tar"])
NAMES = {"zip": "letters.zip", "tar": "letters.tar.gz", "plain": "letters.tar"}


@pytest.mark.parametrize("kind", WHOLE)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_no_damaged_archive_is_taken_for_a_whole_one(kind, data):
    """Neither the recipe nor the server states a digest of this archive."""
    broken = bytearray(WHOLE[kind])
    broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / NAMES[kind]
        file.write_bytes(broken)
        try:
            unpack(file, Path(folder) / "out")
        except FedLoomError:
            return
        # no checksum covers gzip's and zip's headers, and the content of files in a plain tar
        files = [p for p in (Path(folder) / "out").rglob("*") if p.is_file()]
        assert len(files) == len(LETTERS)
        if kind != "plain":
            assert {p.read_bytes() for p in files} == set(LETTERS.values())


@pytest.mark.parametrize("flipped", [1, 2, 72, 105, 128, 255])
def test_a_zip_whose_index_is_damaged_loses_no_member(flipped, tmp_path):
    """A damaged index may hide a member in three ways.

    A longer comment hides the next entries; of two files with one name, the second replaces the
    first; and a file whose name ends in a slash becomes a folder.
    """
    whole = WHOLE["zip"]
    file = tmp_path / NAMES["zip"]
    for place in range(whole.index(b"PK\x01\x02"), len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ flipped]) + whole[place + 1 :])
        out = tmp_path / str(place)
        with suppress(FedLoomError):
            unpack(file, out)
            files = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
            assert sorted(files) == sorted(LETTERS.values())


@pytest.mark.parametrize("kind", WHOLE)
def test_an_archive_that_was_cut_anywhere_is_refused(kind, tmp_path):
    """A server that states no size may end early, and only the archive itself shows it."""
    whole = WHOLE[kind]
    file = tmp_path / NAMES[kind]
    end = 1024 * len(LETTERS) if kind == "plain" else len(whole) - 1  # only zeros follow
    for length in [*range(0, end, 13), end]:
        file.write_bytes(whole[:length])
        with refused(f"{NAMES[kind]}: cannot be unpacked"):
            unpack(file, tmp_path / "out")
    file.write_bytes(whole)
    names = unpack(file, tmp_path / "out")
    assert names == sorted({name.split("/")[0] for name in LETTERS})


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", ["../evil.txt", "a/../../evil.txt", "/evil.txt"])
def test_no_member_may_lie_outside_the_folder(kind, name, tmp_path):
    file = tmp_path / NAMES[kind]
    into = tmp_path / "deep/out"
    file.write_bytes(archive_of(kind, {"a/1.png": b"one", name: b"evil"}))
    with refused(f"'{name}'", "by hand"):
        unpack(file, into)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {file.name}, "nothing is unpacked, and the archive stays to be looked at"


def add(archive, name, kind=tarfile.REGTYPE, link="", content=b"", **more):
    """Add a member of any kind to a tar archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    info.pax_headers = more
    archive.addfile(info, io.BytesIO(content))


def left_to_a_person(file, into, reason, limits=USUAL_UNPACK_LIMITS):
    """Check that an archive is refused in a line, stays, and that nothing of it was written."""
    with refused(file.name, reason, "by hand"):
        unpack(file, into, limits=limits)
    assert file.exists() and not [*into.rglob("*")]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, "zip"])
def test_an_archive_with_anything_but_files_and_folders_is_refused(kind, tmp_path):
    file = tmp_path / NAMES["zip" if kind == "zip" else "tar"]
    if kind == "zip":
        info = zipfile.ZipInfo("b.png")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.png", b"one")
            archive.writestr(info, "a.png")
    else:
        with tarfile.open(file, "w:gz") as archive:
            add(archive, "a.png", content=b"one")
            add(archive, "b.png", kind, "a.png")
    left_to_a_person(file, tmp_path / "out", "'b.png'")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_member_of_a_zip_is_the_archives_fault(method, tmp_path):
    file = tmp_path / "letters.zip"
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a.png", random.Random(0).randbytes(3000))
    content = bytearray(file.read_bytes())
    content[60:80] = bytes(20)
    file.write_bytes(content)
    with refused("letters.zip: cannot be unpacked"):
        unpack(file, tmp_path / "out")
    assert not file.exists(), "another try fetches it anew"


def test_an_encrypted_zip_is_one_line_and_stays(tmp_path):
    content = bytearray(archive_of("zip", {"a.png": b"a"}))
    content[6] |= 1  # flags of the member's header
    content[content.index(b"PK\x01\x02") + 8] |= 1  # and in the index
    file = tmp_path / "letters.zip"
    file.write_bytes(content)
    with refused("'a.png'", "encrypted", "by hand"):
        unpack(file, tmp_path)
    assert file.exists()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_cannot_be_written_out_stays(kind, tmp_path):
    file = tmp_path / NAMES[kind]
    into = tmp_path / "out"
    file.write_bytes(archive_of(kind, {"a/1.png": b"one"}))
    into.mkdir()
    (into / "a").write_text("a file where a folder is to be")
    with refused(file, into):
        unpack(file, into)
    assert file.exists()


def sparse_tar(file, size):
    """Write a tar archive of 1,536 bytes, whose file is `size` zeros, sparse as by GNU tar."""
    with tarfile.open(file, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("a.png")
        info.type, block = tarfile.GNUTYPE_SPARSE, bytearray(info.tobuf(tarfile.GNU_FORMAT))
        block[156:157] = tarfile.GNUTYPE_SPARSE
        block[386:410] = b"%011o\0%011o\0" % (0, 0)  # one piece: none of the zeros is stored
        block[483:495] = b"%011o\0" % size  # the size that the file has
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        archive.fileobj.write(bytes(block))
        archive.offset += len(block)


def test_a_sparse_file_does_not_fill_the_disk(tmp_path):
    """A sparse file may state any size, and as many zeros would be written to the disk."""
    file = tmp_path / NAMES["tar"]
    sparse_tar(file, 8**11 - 1)
    with tarfile.open(file) as archive:
        assert [(info.issparse(), info.size) for info in archive] == [(True, 8**11 - 1)]
    left_to_a_person(file, tmp_path / "out", "'a.png' is a link, a device or a sparse file")


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_grows_too_much_is_refused(kind, tmp_path):
    """Compression shrinks zeros to a thousandth, but images hardly at all."""
    file = tmp_path / NAMES[kind]
    into = tmp_path / "out"
    content = {"a.png": b"one", "b.png": bytes(200_000)}
    file.write_bytes(archive_of(kind, content, zipfile.ZIP_DEFLATED))
    left_to_a_person(file, into, "bytes", UnpackLimits(small=1000))
    assert unpack(file, into, 200_003) == ["a.png", "b.png"], "as the recipe states"
    with refused(file.name, "more than 200,002 bytes"):
        unpack(file, into, 200_002)


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path):
    """tarfile reads an extended header at once, whatever size it states."""
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    header.size = 1 << 30
    file = tmp_path / "x.tar"
    file.write_bytes(header.tobuf() + bytes(1024))
    with refused("x.tar", "header of 1,073,741,824 bytes"):
        archives.unpack(file, tmp_path / "into")


def test_empty_members_count_too(tmp_path):
    file = tmp_path / "many.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(101):
            archive.writestr(f"{number}", "")
    with refused("many.zip", "more than"):
        unpack(file, tmp_path / "into", limits=UnpackLimits(growth=1, small=100 * 512))


def test_an_archive_must_fit_on_the_disk(tmp_path, monkeypatch):
    file = tmp_path / NAMES["zip"]
    file.write_bytes(WHOLE["zip"])
    total = sum(map(len, LETTERS.values()))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=total / 2))
    left_to_a_person(file, tmp_path / "out", "the disk has left")


def test_an_archive_of_too_many_files_is_refused(tmp_path):
    file = tmp_path / NAMES["zip"]
    file.write_bytes(WHOLE["zip"])
    left_to_a_person(file, tmp_path / "out", "5 files", UnpackLimits(members=len(LETTERS) - 1))


@pytest.mark.parametrize("name", ["link/1.png", "a/link/1.png", "link/"])
def test_a_link_that_was_there_before_is_not_followed_out_of_the_folder(name, tmp_path):
    file = tmp_path / NAMES["zip"]
    into = tmp_path / "out"
    outside = tmp_path / "outside"
    outside.mkdir()
    (into / "a").mkdir(parents=True)
    for link in (into / "link", into / "a/link"):
        link.symlink_to(outside)
    file.write_bytes(archive_of("zip", {name: b"" if name.endswith("/") else b"evil"}))
    with refused(file.name, repr(name), "link", "by hand"):
        unpack(file, into)
    assert file.exists() and not [*outside.iterdir()]


def test_a_file_replaces_a_link_and_not_what_it_points_to(tmp_path):
    file = tmp_path / NAMES["zip"]
    into = tmp_path / "out"
    outside = tmp_path / "outside.png"
    outside.write_bytes(b"mine")
    into.mkdir()
    (into / "1.png").symlink_to(outside)
    (into / "2.png").write_bytes(b"of another archive")
    file.write_bytes(archive_of("zip", {"1.png": b"theirs"}))
    assert unpack(file, into) == ["1.png"]
    assert (outside.read_bytes(), (into / "1.png").read_bytes()) == (b"mine", b"theirs")
    assert (into / "2.png").exists() and not (into / "1.png").is_symlink()


@pytest.mark.parametrize("reason", ["damaged", "killed", "written"])
def test_what_was_begun_is_removed(reason, tmp_path, monkeypatch):
    file = tmp_path / NAMES["zip"]
    into = tmp_path / "out"
    whole = archive_of("zip", {"a/1.png": b"one" * 1000, "a/2.png": b"two" * 1000})
    file.write_bytes(whole.replace(b"twotwo", b"onetwo", 1) if reason == "damaged" else whole)
    (into / ".letters.zip.unpacking").mkdir(parents=True)
    (into / ".letters.zip.unpacking" / "old.png").write_bytes(b"of a call that was killed")
    if reason == "damaged":
        with refused("letters.zip", "CRC"):
            unpack(file, into)
    elif reason == "killed":
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            unpack(file, into)
    else:
        unpack(file, into)
    left = sorted(path.name for path in into.rglob("*"))
    assert left == (["1.png", "2.png", "a"] if reason == "written" else [])
