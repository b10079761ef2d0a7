"""Downloads: resumed, checked, unpacked once; from plain servers and from one that is a hub."""

import hashlib
import logging
import shutil

import pytest

from archives_on_disk import archive_of
from fedloom.data import archives, download
from refusals import refused
from servers import Files, Hub, serving, use_hub

CONTENT = bytes(range(256)) * 4000  # a megabyte, which comes in several pieces


NAMES = {"zip": "images.zip", "tar": "images.tar.gz"}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with serving(Files, {"/a/images.bin": CONTENT}) as running:
        yield running


def entry(server, **more):
    return {"url": f"{server.address}/a/images.bin", "into": "."} | more


def test_a_connection_that_breaks_off_is_gone_on_from(server, tmp_path):
    server.cuts = [300_000, 200_000]
    digest = hashlib.sha256(CONTENT).hexdigest()
    download.fetch_archive(entry(server, sha256=digest), tmp_path)
    assert (tmp_path / "images.bin").read_bytes() == CONTENT
    starts = [0 if asked is None else int(asked[6:-1]) for asked in server.asked]
    assert starts[0] == 0 and starts == sorted(starts) and len(set(starts)) == 3


def test_a_server_without_ranges_sends_all_again(server, tmp_path):
    server.ranges = False
    server.cuts = [200_000, 300_000]
    download.fetch_archive(entry(server), tmp_path)
    assert (tmp_path / "images.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("known", [True, False])
def test_a_second_call_goes_on_where_the_first_was_killed(known, server, tmp_path):
    """Only a digest shows that the file has not changed; without one, it is fetched anew."""
    given = entry(server, **({"sha256": hashlib.sha256(CONTENT).hexdigest()} if known else {}))
    part = tmp_path / ".downloads/images.bin.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT[:300_000])
    download.fetch_archive(given, tmp_path)
    assert (tmp_path / "images.bin").read_bytes() == CONTENT
    assert server.asked == ["bytes=300000-" if known else None]


def test_a_part_that_the_server_cannot_go_on_with_is_fetched_anew(server, tmp_path):
    """A call that is killed before it renames the file leaves a whole part behind."""
    part = tmp_path / ".downloads/images.bin.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    given = entry(server, sha256=hashlib.sha256(CONTENT).hexdigest())
    with refused("images.bin", "416", "again"):
        download.fetch_archive(given, tmp_path)
    download.fetch_archive(given, tmp_path)
    assert (tmp_path / "images.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("fact", [{"sha256": "0" * 64}, {"md5": "0" * 32}])
def test_what_is_not_as_the_recipe_says_is_deleted(server, tmp_path, fact):
    with refused("images.bin", *fact, *fact.values()):
        download.fetch_archive(entry(server, **fact), tmp_path)
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert not left


def test_a_digest_that_the_recipe_lacks_is_said(server, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    digests = {kind: hashlib.new(kind, CONTENT).hexdigest() for kind in ("sha256", "md5")}
    for kind, digest in digests.items():
        download.fetch_archive(entry(server, **{kind: digest}), tmp_path / kind)
    assert "no digest" not in caplog.text
    download.fetch_archive(entry(server), tmp_path)
    line = f"images.bin: its sha256 is {digests['sha256']}; the recipe has no digest"
    assert line in caplog.text


def test_nothing_is_fetched_twice_unless_the_recipe_has_changed(server, tmp_path):
    download.fetch_archive(entry(server), tmp_path)
    count = len(server.asked)
    download.fetch_archive(entry(server), tmp_path)
    assert len(server.asked) == count
    digest = hashlib.md5(CONTENT).hexdigest()
    download.fetch_archive(entry(server, md5=digest), tmp_path)
    assert len(server.asked) == count + 1


@pytest.mark.parametrize("text", ["", "[]"])
def test_a_damaged_record_is_one_line(text, server, tmp_path):
    record = tmp_path / ".downloads/images.bin.done.json"
    record.parent.mkdir()
    record.write_text(text)
    with refused("images.bin.done.json"):
        download.fetch_archive(entry(server), tmp_path)
    record.write_text("{}")
    download.fetch_archive(entry(server), tmp_path)
    assert (tmp_path / "images.bin").read_bytes() == CONTENT, "it says nothing of this file"


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_is_unpacked_and_goes(kind, server, tmp_path):
    files = {"letters/a/1.png": b"one", "letters/b/2.png": b"two"}
    server.files["/a/images.bin"] = archive_of(kind, files)
    given = entry(server, into="train", name=NAMES[kind])
    download.fetch_archive(given, tmp_path)
    assert (tmp_path / "train/letters/b/2.png").read_bytes() == b"two"
    assert not (tmp_path / ".downloads" / NAMES[kind]).exists()
    shutil.rmtree(tmp_path / "train/letters")
    download.fetch_archive(given, tmp_path)
    assert (tmp_path / "train/letters/a/1.png").exists(), "what has gone is fetched again"


def test_an_archive_that_was_half_unpacked_is_unpacked_again(server, tmp_path, monkeypatch):
    server.files["/a/images.bin"] = archive_of("zip", {"a/1.png": b"one", "b/2.png": b"two"})

    def killed(members, aside):
        (aside / "a").mkdir()
        (aside / "a/1.png").write_bytes(b"o")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(archives, "_write", killed)
        download.fetch_archive(entry(server, name="images.zip"), tmp_path)
    assert not (tmp_path / "a").exists()
    download.fetch_archive(entry(server, name="images.zip"), tmp_path)
    assert (tmp_path / "a/1.png").read_bytes() == b"one" and (tmp_path / "b/2.png").exists()
    assert len(server.asked) == 1


def test_a_broken_archive_is_deleted_and_fetched_anew(server, tmp_path):
    whole = archive_of("zip", {"a/1.png": b"one" * 1000})
    server.files["/a/images.bin"] = whole.replace(b"oneone", b"twoone", 1)
    with refused("images.zip: cannot be unpacked"):
        download.fetch_archive(entry(server, name="images.zip"), tmp_path)
    server.files["/a/images.bin"] = whole
    download.fetch_archive(entry(server, name="images.zip"), tmp_path)
    assert (tmp_path / "a/1.png").read_bytes() == b"one" * 1000


def test_a_web_page_in_place_of_a_file_is_refused(server, tmp_path):
    server.files["/a/images.bin"] = b"\n<!DOCTYPE html><html>Quota exceeded</html>"
    with refused("images.bin", "web page"):
        download.fetch_archive(entry(server, name="split.json"), tmp_path)
    assert not (tmp_path / "split.json").exists()
    assert not [*(tmp_path / ".downloads").glob("*.done.json")]


@pytest.mark.parametrize("status", [404, 503])
def test_a_server_that_refuses_is_one_line(server, tmp_path, status):
    server.status = status
    with refused("images.bin", status):
        download.fetch_archive(entry(server), tmp_path)


def test_a_server_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with refused("http://127.0.0.1:9", "again"):
        download.fetch_archive({"url": "http://127.0.0.1:9/x.zip", "into": "."}, tmp_path)


# ---- the hub ------------------------------------------------------------------------------------

TRAIN, TEST = (f"data/{half}-00000-of-00001.parquet" for half in ("train", "test"))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Yield a hub with a data set, whose address the client of the hub has, as by HF_ENDPOINT."""
    with serving(Hub, {TRAIN: CONTENT, TEST: CONTENT[:5000], "README.md": b"letters"}) as running:
        use_hub(monkeypatch, running.address, tmp_path / "home")
        yield running


def from_hub(root, *files, revision=Hub.commit):
    download.fetch_from_hub("me/letters", revision, list(files), root)


def test_files_of_the_hub_come_by_pattern_and_are_compared_with_its_digests(hub, tmp_path):
    hub.lies = {TEST}
    with refused(TEST, "digest"):
        from_hub(tmp_path / "letters", "data/*.parquet")
    assert not (tmp_path / "letters" / TEST).exists(), "what differed is deleted"
    hub.lies = set()
    from_hub(tmp_path / "letters", "data/*.parquet")
    assert (tmp_path / "letters" / TRAIN).read_bytes() == CONTENT
    assert (tmp_path / "letters" / TEST).read_bytes() == CONTENT[:5000]
    assert not (tmp_path / "letters/README.md").exists()


@pytest.mark.parametrize("name", ["test/*.parquet", "data/tset.parquet"])
def test_a_file_that_the_hub_lacks_is_one_line(name, hub, tmp_path):
    with refused("me/letters", name):
        from_hub(tmp_path / "letters", "data/*.parquet", name)


def test_an_unknown_revision_is_one_line(hub, tmp_path):
    with refused("me/letters", hub.address, "f" * 40):
        from_hub(tmp_path / "letters", "data/*", revision="f" * 40)


@pytest.mark.parametrize("message", [None, ""])
def test_a_hub_that_is_not_there_is_one_line(message, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client sleeps between tries
    reason = ""
    if message is not None:

        def silent(*_, **__):
            raise OSError(message)

        monkeypatch.setattr("huggingface_hub.snapshot_download", silent)
        reason = "OSError"
    with refused("me/letters", "http://127.0.0.1:9", reason, "HF_ENDPOINT"):
        from_hub(tmp_path, "*", revision="main")


def test_a_recipe_states_what_its_archive_may_unpack_to(server, tmp_path):
    server.files["/a/images.bin"] = archive_of("zip", {"1.png": bytes(2000)})
    stated = entry(server, name="images.zip") | {"unpacked_bytes": 1999}
    with refused("images.zip", "1,999 bytes", "unpacked_bytes"):
        download.fetch_archive(stated, tmp_path)
    download.fetch_archive(stated | {"unpacked_bytes": 2000}, tmp_path)
    assert (tmp_path / "1.png").exists()
