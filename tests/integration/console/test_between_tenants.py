"""What the console tells one tenant of another: every page and form, its ids as those of nobody (case H14).

The matrix is made from the page table and gone through with the ids of another tenant and with ids that
nobody has; the answers must be the same, word for word, and the other tenant's records stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from uuid import uuid4

import msgspec
import pytest
from litestar.handlers import HTTPRouteHandler

from app.console.pages import PAGES
from app.http.access import PUBLIC
from tests.integration.console.browser import Shown, Visit
from tests.integration.http.client import POLICY, Client
from tests.integration.http.posting import fragment, node, node_id
from tests.integration.http.serving import Running

NO_ID: Final = frozenset({"seq"})
"""Names of a path that are no ids of anybody."""

FIELDS: Final = (
    "?agent={agent_id}",
    "?session={session_id}",
    "?node={node_id}&of={agent_id}",
    "?after={agent_id}",
    "?after=1,{log_uuid},act-1",
    "?after=2026-01-01T00:00:00.000000Z,{session_id}",
    "?before={agent_id}",
    "?q={agent_id}",
    "?checkpoint=1:{head}",
    "?run={run}",
)

FORM: Final = {
    "decision": "reject",
    "reason": "not yours",
    "severity": "minor",
    "agent_id": "{agent_id}",
    "action_id": "act-1",
    "role": "agent",
    "name": "thief",
}


class Ids(msgspec.Struct, frozen=True):
    """What a page may be asked for of somebody. All as long as each other's, so that lengths tell nothing."""

    agent_id: str
    session_id: str
    key_id: str
    log_uuid: str
    head: str
    seen: str
    node_id: str
    run: str = "0123456789abcdef"
    action_id: str = "act-1"
    seq: str = "1"


NOBODYS: Final = Ids(
    "nobodys-agent", str(uuid4()), "5a" * 8, str(uuid4()), "5b" * 32, "5c" * 32, str(uuid4())
)


@pytest.fixture
def theirs(operator: Client) -> Ids:
    """Another tenant with something behind every page."""
    name = "someone-agent"
    session_id = str(uuid4())
    agent = operator.create(name, POLICY)
    asked = {"tool": "send_email", "session_id": session_id}
    assert agent.post(f"/v1/agents/{name}/actions", asked).json["action_id"] == "act-1"
    traces = operator.post(f"/v1/agents/{name}/traces", fragment(node(1), session_id=session_id))
    assert traces.status == 200
    key = operator.post("/v1/keys", {"role": "auditor", "name": "Grace"}).json["key"]
    status = operator.get(f"/v1/agents/{name}").json
    records = operator.get(f"/v1/agents/{name}/log").json["records"]
    [record] = [record for record in records if record["kind"] == "action_requested"]
    return Ids(
        name,
        session_id,
        key["key_id"],
        status["log_uuid"],
        status["head"]["hash"],
        record["hash"],
        node_id(1),
    )


@pytest.fixture
def strangers(service: Running) -> tuple[Visit, Visit]:
    """Operators of two tenants that are as alike as two can be."""
    one, other = (_stranger(service, slug) for slug in ("acme", "bcme"))
    return one, other


def _stranger(service: Running, slug: str) -> Visit:
    root = Client(service.url, service.root_token)
    made = root.post("/v1/tenants", {"slug": slug, "name": "Acme", "operator": "Ada"}).json
    root.as_(made["token"]).create("mine", POLICY)
    return Visit(service.url).sign_in(made["token"])


def _filled(handler: HTTPRouteHandler, ids: Ids) -> Iterator[str]:
    for path in sorted(handler.paths):
        yield re.sub(r"\{(\w+):str\}", lambda found: str(getattr(ids, found[1])), path)


def pages(method: str) -> list[HTTPRouteHandler]:
    return [
        handler for handler in PAGES if method in handler.http_methods and not handler.opt.get(PUBLIC, False)
    ]


def plain(shown: Shown, ids: Ids) -> tuple[int, dict[str, str], str]:
    """An answer without the ids that were asked for, and without what is always new."""

    def of(text: str) -> str:
        for name in ("agent_id", "session_id", "key_id", "log_uuid", "head", "seen", "node_id"):
            text = text.replace(getattr(ids, name), name)
        text = re.sub(r"\b[ab]cme\b", "slug", text)
        text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "uuid", text)
        text = re.sub(r"\b[0-9a-f]{10,128}\b", "id", text)
        text = re.sub(r'name="(once|csrf)" value="[^"]+"', r"\1", text)
        text = re.sub(r"\btrk_[\w.-]+", "key", text)
        text = re.sub(r"\d+ s(econds?)? ago|just now", "lately", text)
        return re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?|\d{8}T\d{6}Z", "time", text)

    headers = {
        name: of(value)
        for name, value in shown.headers.items()
        if name not in {"date", "x-request-id", "content-length"}
    }
    return shown.status, headers, of(shown.text)


def asked(visit: Visit, ids: Ids) -> list[tuple[str, tuple[int, dict[str, str], str]]]:
    """Every page with the ids, and every form."""
    csrf = visit.csrf()
    answers = []
    for handler in pages("GET"):
        for path in _filled(handler, ids):
            if path in {
                "/approvals/stream",
                "/export.zip",
            }:  # they take no id; one has no end, one is no text
                continue
            for fields in ("", *FIELDS):
                place = path + fields.format(**msgspec.structs.asdict(ids))
                if "{" not in next(iter(handler.paths)) or not fields or "?node" in fields:
                    answers.append((f"GET {place}", plain(visit.get(place), ids)))
    for handler in pages("POST"):
        for path in _filled(handler, ids):
            if path == "/sign-out":
                continue
            form = {name: value.format(**msgspec.structs.asdict(ids)) for name, value in FORM.items()}
            form |= {"csrf": csrf, "seen": ids.seen, "once": ids.seen[:16]}
            answers.append((f"POST {path}", plain(visit.post(path, form), ids)))
    return answers


def test_h14_another_tenants_ids_are_answered_as_nobodys(
    strangers: tuple[Visit, Visit], theirs: Ids, operator: Client, signed_in: Visit
) -> None:
    before = operator.get(f"/v1/agents/{theirs.agent_id}/log").json
    # Each by a stranger of its own, since what is asked for is on record and shown to who asked.
    mine = asked(strangers[0], theirs)
    nobodys = asked(strangers[1], NOBODYS)
    assert len(mine) == len(nobodys) > 60
    for (what, theirs_told), (other, nobodys_told) in zip(mine, nobodys, strict=True):
        assert theirs_told[:2] == nobodys_told[:2], (what, other)
        different = [
            pair
            for pair in zip(theirs_told[2].splitlines(), nobodys_told[2].splitlines(), strict=True)
            if pair[0] != pair[1]
        ]
        assert different == [], (what, other)
        assert "Grace" not in theirs_told[2], what
        assert "nobody" not in theirs_told[2], what
    assert {told[0] for _, told in mine} <= {200, 303, 400, 404, 409}
    assert operator.get(f"/v1/agents/{theirs.agent_id}/log").json == before
    assert signed_in.get(f"/approvals/{theirs.agent_id}/act-1").status == 200, "it is there, for its own"


def test_h14_the_pages_know_every_id_that_their_paths_take() -> None:
    named = {name for handler in PAGES for path in handler.paths for name in re.findall(r"\{(\w+):", path)}
    assert named - {"name"} <= set(Ids.__struct_fields__), "a page takes an id that the matrix does not know"


def test_the_forms_of_one_tenants_visit_are_no_forms_of_another(
    strangers: tuple[Visit, Visit], signed_in: Visit, theirs: Ids, operator: Client
) -> None:
    stranger, _ = strangers
    foreign, own = stranger.csrf(), signed_in.csrf()
    place = f"/approvals/{theirs.agent_id}/act-1"
    form = {"decision": "reject", "reason": "x", "seen": theirs.seen}
    assert signed_in.post(place, {**form, "csrf": foreign}).status == 403
    assert stranger.post(place, {**form, "csrf": own}).status == 403
    mixed = Visit(f"http://{signed_in.address}")
    mixed.cookies = {name: value[: len(value) // 2] for name, value in signed_in.cookies.items()}
    for name, value in stranger.cookies.items():
        mixed.cookies[name] += value[len(value) // 2 :]
    assert mixed.get(place).status == 303, "two halves of cookies open nothing"
    assert operator.get(f"/v1/agents/{theirs.agent_id}/actions/act-1").json["status"] == "pending_approval"
