"""A guarded agent's chain in memory: real seals, real fold, a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from app.chain.keys import SigningKey
from app.chain.link import seal_all
from app.chain.record import GENESIS, Draft, VerifiedRecord
from app.chain.strict import JsonValue
from app.errors import UnknownActionError
from app.guard import decide
from app.guard.bodies import Ask, Claim
from app.guard.claim import claim
from app.guard.decide import Act, Decision
from app.guard.policy import Policy
from app.guard.state import EMPTY, Action, GuardState, fold, fold_action
from app.guard.words import OutcomeStatus, Severity

KEY = SigningKey.from_raw(bytes(range(32)))
LOG = UUID("6b1f0c5e-53a1-4a52-9f6a-0b6e2a4f9d10")
AGENT = "agent-1"
SECOND = 1_000_000
START = 1_790_000_000 * SECOND

PolicyDocument = dict[str, JsonValue]


def policy_document(**members: JsonValue) -> PolicyDocument:
    """A policy with a free tool, one that costs, and one that needs a person."""
    document: PolicyDocument = {
        "budget": 100,
        "scar_limit": 50,
        "tools": {
            "look": {"cost": 0},
            "search": {"cost": 2},
            "email": {"cost": 5, "requires_approval": True},
        },
    }
    return {**document, **members}


class GuardChain:
    """What the ledger does with a chain, without a table: decide, seal, fold, keep the records."""

    def __init__(self, policy: PolicyDocument | None, *, now_us: int = START) -> None:
        self.records: list[VerifiedRecord] = []
        self.state: GuardState = EMPTY
        self.now_us = now_us
        named: dict[str, JsonValue] = {"log_id": AGENT, "log_uuid": str(LOG), "public_key": KEY.public.hex}
        self.append(Draft(kind=GENESIS, actor=AGENT, payload=named))
        if policy is not None:
            document = Policy.parse(policy).to_json()
            self.append(Draft(kind="policy", actor=AGENT, payload={"policy": document}))

    def append(self, *drafts: Draft) -> tuple[VerifiedRecord, ...]:
        """Seals and folds ``drafts``, all at the present time."""
        sealed = seal_all(drafts, self.state.head, self.now_us, KEY)
        self.state = fold(sealed, self.state)
        self.records += sealed
        return sealed

    def do(self, act: Act) -> Decision | None:
        """Appends an act and gives its answer, or raises its refusal."""
        self.append(*act.drafts)
        if act.refusal is not None:
            raise act.refusal
        return act.answer

    def wait(self, secs: float) -> None:
        """Moves the clock, backwards too."""
        self.now_us += round(secs * SECOND)

    def kinds(self, *, last: int) -> list[str]:
        """The kinds of the last records."""
        return [record.kind for record in self.records[-last:]]

    def action(self, action_id: str) -> Action:
        """One action, folded from its records as the ledger reads them."""
        kinds = {
            "action_requested",
            "approval_required",
            "action_allowed",
            "action_denied",
            "action_rejected",
            "action_claimed",
            "outcome",
        }
        own = [r for r in self.records if r.kind in kinds and r.payload["action_id"] == action_id]
        if not own:
            raise UnknownActionError(action_id)
        return fold_action(own)

    def ask(
        self,
        tool: str,
        value: JsonValue = None,
        cost: int | None = None,
        *,
        session_id: UUID | None = None,
        parent_id: UUID | None = None,
        thought_process: str | None = None,
        actor: str = AGENT,
        key: str | None = None,
    ) -> Decision:
        """Requests an action, with the agent's own token or with a key."""
        asked = Ask(tool, value, cost, session_id, parent_id, thought_process)
        act = decide.request(
            self.state,
            asked,
            agent_id=AGENT,
            log_uuid=LOG,
            actor=actor,
            key=key,
            now_us=self.now_us,
            lapsed=[self.action(lapsed) for lapsed in decide.lapsed_ids(self.state, self.now_us)],
        )
        answer = self.do(act)
        assert answer is not None
        return answer

    def approve(
        self, action_id: str, by: str = "alice", note: str | None = None, key: str | None = None
    ) -> Decision:
        """Approves a pending action with the key of ``by``."""
        answer = self._on(
            decide.approve,
            action_id,
            approver=f"claimed {by}",
            note=note,
            actor=by,
            key=key or f"{by}-key",
            agent_id=AGENT,
        )
        assert answer is not None
        return answer

    def reject(self, action_id: str, reason: str = "no", scar: Severity | None = None) -> Decision:
        """Rejects a pending action."""
        answer = self._on(
            decide.reject, action_id, approver="Bob", reason=reason, scar=scar, actor="bob", key="bob-key"
        )
        assert answer is not None
        return answer

    def claim(self, action_id: str, tool: str, value: JsonValue = None, by: str = "backend") -> Decision:
        """Claims an action to carry it out."""
        body = Claim(tool, value)
        answer = self._on(claim, action_id, body=body, actor=by, key=f"{by}-key")
        assert answer is not None
        return answer

    def report(self, action_id: str, status: OutcomeStatus, detail: str = "") -> None:
        """Reports an outcome."""
        self._on(decide.report, action_id, status=status, detail=detail)

    def scar(self, severity: Severity, reason: str = "seen", action_id: str | None = None) -> None:
        """Scars the agent."""
        self.do(
            decide.scar(self.state, severity=severity, reason=reason, action_id=action_id, actor="monitor")
        )

    def terminate(self, reason: str = "incident", by: str = "ops") -> None:
        """Pulls the kill switch."""
        self.do(decide.terminate(self.state, reason=reason, by=by, actor="ops"))

    def _on(self, function: Callable[..., Act], action_id: str, **details: object) -> Decision | None:
        act = function(
            self.state,
            self.action(action_id),
            **{"actor": "ops", "log_uuid": LOG, "now_us": self.now_us, **details},
        )
        return self.do(act)
