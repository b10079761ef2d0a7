"""Local servers for downloads: plain files with ranges, and what Hugging Face's hub answers."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest


class Files(BaseHTTPRequestHandler):
    """Serve `server.files` {path: bytes} as a web server does, with ETag, Range and If-Range.

    `server.cuts` are numbers of bytes after which the next answers break off, and `server.status`
    an error that is answered instead; without `server.ranges`, all of a file is sent each time.
    `server.asked` has the Range of every GET.
    """

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(self.headers.get("Range"))
        content = self.server.files.get(path)
        if self.server.status or content is None:
            return self.answer(self.server.status or 404, b"")
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        start = 0
        wanted = self.headers.get("Range")
        if wanted and self.server.ranges and self.headers.get("If-Range", tag) == tag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        headers = {"ETag": tag}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self.answer(206 if start else 200, content[start:], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.server.cuts.pop(0) if self.server.cuts and body else None
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True


LARGE = (".parquet", ".safetensors")


class Hub(Files):
    """Serve `server.files` as the data set `me/letters` of Hugging Face's hub, at one commit.

    Files whose names end with LARGE are in large file storage, known by their sha256; others by
    git's sha1 of a blob. `server.lies` holds names whose bytes are sent with an error in them, and
    `server.gated` is True if files are given only to people who accept terms.
    """

    api = "/api/datasets/me/letters"
    files = "/datasets/me/letters"
    commit = "0123456789abcdef0123456789abcdef01234567"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(self.headers.get("Range"))
        listing = self.api
        if not path.startswith((listing, f"{self.files}/")):
            return self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        revision = next((r for r in (self.commit, "main") if r in path), None)
        if path in (f"{listing}/revision/{revision}", listing):
            return self.json({"id": "me/letters", "sha": self.commit, "siblings": self.siblings()})
        if path == f"{listing}/tree/{revision}":
            return self.json([self.entry(name) for name in sorted(self.server.files)])
        name = path.removeprefix(f"{self.files}/resolve/{revision}/")
        content = self.server.files.get(name)
        if content is None or revision is None:
            headers = {"X-Error-Code": "RevisionNotFound" if revision is None else "EntryNotFound"}
            return self.answer(404, b"", headers)
        if self.server.gated:
            return self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        self.server.given.append(name)
        entry = self.entry(name)
        headers = {"X-Repo-Commit": self.commit, "ETag": f'"{entry["oid"]}"'}
        if "lfs" in entry:
            headers |= {"X-Linked-Etag": f'"{entry["lfs"]["oid"]}"'}
            headers |= {"X-Linked-Size": str(len(content))}
        if name in self.server.lies:
            content = bytes([content[0] ^ 1]) + content[1:]
        start = 0
        wanted = self.headers.get("Range")
        if wanted:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self.answer(206 if wanted else 200, content[start:], headers)

    def siblings(self) -> list[dict[str, str]]:
        return [{"rfilename": name} for name in sorted(self.server.files)]

    def entry(self, name: str) -> dict[str, Any]:
        content = self.server.files[name]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "path": name, "size": len(content), "oid": blob}
        if name.endswith(LARGE):
            large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
            entry["lfs"] = large | {"pointerSize": 134}
        return entry

    def json(self, value: object) -> None:
        return self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


class ModelHub(Hub):
    """Serve `server.files` as the model `me/letters` of Hugging Face's hub."""

    api = "/api/models/me/letters"
    files = "/me/letters"


@contextmanager
def serving(handler: type[Files], files: dict[str, bytes]) -> Iterator[Any]:
    """Run a server of files; its attribute `address` is where."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.files, server.cuts, server.status, server.asked, server.lies = files, [], None, [], set()
    server.ranges, server.gated, server.given = True, False, []
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(patch: pytest.MonkeyPatch, address: str, cache: Path) -> None:
    """Give the hub's client the address of a hub, as HF_ENDPOINT does, and an empty cache."""
    url = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    patch.setattr("huggingface_hub.constants.ENDPOINT", address)
    patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url)
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
