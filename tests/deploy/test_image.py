"""The recipe of the image, as far as it can be read without a builder: what comes in, who runs it."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.server import StartServer
from tests.support.tools import DEPLOY, ROOT


def instructions() -> list[tuple[str, str]]:
    """Each instruction and the rest of it, lines joined, comments left out."""
    lines = (DEPLOY / "Dockerfile").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def of(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def _health_command() -> list[str]:
    [check] = of("HEALTHCHECK")
    found: list[str] = json.loads(check[check.index("CMD ") + 4 :])
    return found


def test_the_base_is_pinned_and_no_release_is_guessed() -> None:
    [image] = [rest.partition("=")[2] for rest in of("ARG") if rest.startswith("PYTHON_IMAGE=")]
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", image)
    assert {rest.split()[0] for rest in of("FROM")} == {"${PYTHON_IMAGE}"}
    classifier = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f"VERSION={classifier}" in of("ARG")


def test_packages_are_those_of_the_lock_by_their_hashes() -> None:
    steps = [json.loads(rest) for rest in of("RUN") if rest.startswith("[")]
    [fetched] = [step for step in steps if step[1] == "download"]
    assert {"--require-hashes", "--only-binary=:all:", "--requirement=requirements.lock"} <= set(fetched)
    later = [step for step in steps if step[1] in {"wheel", "install"}]
    assert len(later) == 2
    for step in later:
        assert "--no-index" in step


def test_it_runs_as_nobody_in_particular_and_without_a_shell() -> None:
    assert of("USER") == ["10001:10001"]
    assert of("ADD") == []
    for word in ("ENTRYPOINT", "CMD"):
        [given] = of(word)
        assert isinstance(json.loads(given), list)
    assert not re.search("curl|wget|apt", (DEPLOY / "Dockerfile").read_text("utf-8"))


def test_labels_say_what_it_is() -> None:
    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", " ".join(of("LABEL"))))
    assert {"title", "description", "licenses", "version", "revision"} <= labels


def test_what_is_copied_is_let_through_and_nothing_else_is() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    let_through = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines, "everything is left out that is not named"
    copied = {name for rest in of("COPY") if "--from" not in rest for name in rest.split()[:-1]}
    assert copied == let_through
    for name in copied:
        assert (ROOT / name).exists(), name
    secrets = ("trails-data", "deploy/secrets", ".env", ".git")
    assert not any(fnmatch.fnmatch(secret.split("/")[0], name) for secret in secrets for name in let_through)


def test_the_health_check_tells_a_service_that_lives_from_one_that_does_not(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(env={"TRAILS_ALLOWED_HOSTS": "trails.example.com"})
    program, *arguments = _health_command()
    assert program == "python"
    bind = server.base_url.removeprefix("http://")
    command = [sys.executable, *arguments]

    def check() -> int:
        environment = {"TRAILS_BIND": f"0.0.0.0:{bind.rpartition(':')[2]}"}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, check=False
        ).returncode

    assert check() == 0
    server.stop()
    assert check() != 0


def test_it_serves_where_nothing_can_be_written(start_server: StartServer, tmp_path: Path) -> None:
    """As with a read-only root: neither a folder for data nor one for what is temporary."""
    nowhere = tmp_path / "nowhere"
    nowhere.touch()  # a file: nothing can be made below it, not by root either
    server = start_server(
        env={
            "TRAILS_DATA_DIR": str(nowhere / "data"),
            "HOME": str(nowhere),
            "TMPDIR": str(nowhere),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TRAILS_WORKERS": "2",
        }
    )
    with server.client() as client:
        made = client.post("/v1/agents", json={"agent_id": "a", "policy": None})
        assert made.status_code == 200, made.text
    assert server.stop() == 0


@pytest.mark.parametrize("file", ["compose.yaml", "kubernetes/deployment.yaml"])
def test_whoever_runs_it_gives_it_a_read_only_root(file: str) -> None:
    text = (DEPLOY / file).read_text("utf-8")
    assert re.search(r"read_only: true|readOnlyRootFilesystem: true", text)
