"""A stand-in for the hub: the part of its HTTP interface that uploads and downloads a model use."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import datasets
import pytest

TOKEN = "hf_stand_in"


@contextmanager
def offline(cache: Path) -> Iterator[None]:
    """Look up nothing on the hub, and write what is downloaded or converted to a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
        patch.setattr(datasets.config, "HF_MODULES_CACHE", str(cache / "modules"))
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache / "hub"))
        datasets.disable_progress_bars()
        yield


@dataclass
class Hub:
    """The state of a stand-in.

    Attributes:
        repos: Files by name, by the commit, by the repository.
        refs: Newest commit of each branch, by the repository.
        private: Whether each repository is private.
        messages: Message of each commit.
        blobs: Large files by their SHA-256 digest.
        requests: Methods and paths of all requests.
    """

    url: str = ""
    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    refs: dict[str, dict[str, str]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes] | None:
        """The files of a revision; None if it does not exist."""
        commit = self.refs[repo].get(revision, revision)
        return self.repos[repo].get(commit)

    def commit(self, repo: str, branch: str, lines: list[dict[str, Any]]) -> str:
        files = dict(self.files(repo, branch) or {})
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.blobs[value["oid"]]
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.repos[repo][commit] = files
        self.refs[repo][branch] = commit
        return commit


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of huggingface_hub."""

    hub: ClassVar[Hub]

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        path, body = self._start()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, {"error": "Invalid username or password."})
        elif path == "/api/validate-yaml":
            self._send(200, {"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            content = json.loads(body)
            repo = f"{content['organization']}/{content['name']}"
            known = repo in self.hub.repos
            if not known:
                self.hub.repos[repo], self.hub.refs[repo] = {}, {}
                self.hub.private[repo] = content.get("visibility") == "private"
            self._send(409 if known else 200, {"url": f"{self.hub.url}/{repo}"})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", path):
            self.hub.refs[match[1]].setdefault(match[2], "")
            self._send(200, {})
        elif "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            self._send(200, {"files": [_mode(name) for name in names]})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            self._send(200, {"objects": [self._action(each) for each in objects]})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            lines = [json.loads(line) for line in body.splitlines()]
            commit = self.hub.commit(match[1], match[2], lines)
            url = f"{self.hub.url}/{match[1]}/commit/{commit}"
            self._send(200, {"success": True, "commitOid": commit, "commitUrl": url})
        else:
            self._send(404, {"error": path})

    def do_PUT(self) -> None:
        path, body = self._start()
        self.hub.blobs[path.rpartition("/")[2]] = body
        self._send(200, {})

    def do_GET(self) -> None:
        path, _ = self._start()
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            repo, kind, revision = match[1], match[2], unquote(match[3] or "main")
            files = self._files(repo, revision)
            if files is None:
                return
            sha = self.hub.refs[repo].get(revision, revision)
            info = {"id": repo, "sha": sha, "siblings": [{"rfilename": name} for name in files]}
            self._send(200, _tree(files) if kind == "tree" else info)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            files = self._files(match[1], match[2])
            if files is not None and match[3] in files:
                content = files[match[3]]
                digest = hashlib.sha256(content).hexdigest()
                headers = {"ETag": f'"{digest}"', "X-Repo-Commit": match[2]}
                self._send(200, content, headers)
        else:
            self._send(404, {"error": path})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _files(self, repo: str, revision: str) -> dict[str, bytes] | None:
        if repo not in self.hub.repos:
            self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        files = self.hub.files(repo, revision)
        if files is None:
            headers = {"X-Error-Code": "RevisionNotFound"}
            self._send(404, {"error": f"Invalid rev id: {revision}"}, headers)
        return files

    def _action(self, each: dict[str, Any]) -> dict[str, Any]:
        href = f"{self.hub.url}/lfs/{each['oid']}"
        return {**each, "actions": {"upload": {"href": href, "header": {}}}}

    def _start(self) -> tuple[str, bytes]:
        path = urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return path, body
        return path, self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_response(status)
        fields = {"Content-Length": str(len(data)), "Content-Type": kind, **(headers or {})}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def stand_in() -> Iterator[Hub]:
    """Run a stand-in on a free port of this machine."""
    hub = Hub()
    handler = type("OwnHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _mode(name: str) -> dict[str, Any]:
    # As the hub does: large files go to another storage.
    mode = "lfs" if name.endswith(".safetensors") else "regular"
    return {"path": name, "uploadMode": mode, "shouldIgnore": False, "oid": None}


def _tree(files: dict[str, bytes]) -> list[dict[str, Any]]:
    entries = []
    for name, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": digest}
        if _mode(name)["uploadMode"] == "lfs":
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
        entries.append(entry)
    return entries
