"""What each panel has to show of the story of ``cookbook_world``, computed from its account alone.

Rows of plain values: times in microseconds, numbers as floats.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from tests.integration.bi.story import DAMAGED
from tests.support import cookbook_answers as answers
from tests.support.cookbook_answers import Asked
from tests.support.cookbook_world import DAY, SECOND, Act, Sent, World, micros

Row = dict[str, Any]

BUDGETS: Final = {"buyer": 200, "rookie": 20, "thrifty": 20, "eager": 20}
MOST: Final = 10


class Answer(msgspec.Struct, frozen=True):
    """One answer of the guard."""

    at: int
    agent: str
    tool: str
    decision: str
    reason: str | None = None
    charged: int | None = None


class View(msgspec.Struct, frozen=True):
    """The story as somebody looks at it; times in microseconds."""

    world: World
    since: int
    until: int
    bin_us: int

    @property
    def asked(self) -> Asked:
        """The same stretch of time for the cookbook's answers; a panel takes its end with it."""
        return Asked(self.since, self.until + 1)

    def within(self, at: int) -> bool:
        return self.since <= at <= self.until

    def bin(self, at: int) -> int:
        """When the bin of a time begins; days and hours begin alike from 1970 and from 2000 on."""
        return at - at % self.bin_us

    def answers(self) -> list[Answer]:
        found = []
        for act in self.world.acts:
            if act.held:
                found.append(Answer(act.at, act.agent, act.tool, "pending_approval"))
            if act.decision != "pending":
                allowed = act.decision in {"allowed", "approved"}
                found.append(
                    Answer(
                        act.decided_at,
                        act.agent,
                        act.tool,
                        "allowed" if allowed else act.decision,
                        act.reason,
                        act.cost if allowed else None,
                    )
                )
        return [one for one in found if self.within(one.at)]

    def decided(self) -> list[Answer]:
        return [one for one in self.answers() if one.decision != "pending_approval"]

    def refused(self) -> list[Answer]:
        return [one for one in self.decided() if one.decision != "allowed"]

    def charged(self) -> list[Answer]:
        return [one for one in self.decided() if one.decision == "allowed"]

    def failed(self) -> list[Sent]:
        return [one for one in self.world.failed() if self.within(one.at)]

    def ended(self) -> list[Row]:
        return [one for one in self.world.ended if self.within(one["at"])]

    def scars(self) -> list[Row]:
        return [one for one in self.world.scars if self.within(one["at"])]

    def waits(self) -> list[Act]:
        return [one for one in self.world.acts if one.held and self.within(one.decided_at)]

    def remaining_after(self, one: Answer) -> int:
        """What was left of the agent's budget when this was charged."""
        before = msgspec.structs.replace(self, since=0, until=one.at).charged()
        return BUDGETS[one.agent] - sum(other.charged or 0 for other in before if other.agent == one.agent)


def binned(view: View, found: Iterable[tuple[int, str]]) -> list[Row]:
    """How many there are of each name in each bin."""
    counted = Counter((view.bin(at), name) for at, name in found)
    return [{"time": at, "metric": name, "value": count} for (at, name), count in sorted(counted.items())]


def one(name: str, value: Any) -> list[Row]:
    return [{name: value}]


def denied_percent(view: View) -> list[Row]:
    return one("denied", round(100 * len(view.refused()) / len(view.decided()), 1))


def by_reason(view: View) -> list[Row]:
    counted = Counter(one.reason for one in view.refused())
    return [{"reason": reason, "denied": count} for reason, count in counted.items()]


def failed_by_tool(view: View) -> list[Row]:
    groups: dict[str, list[Sent]] = defaultdict(list)
    for call in view.failed():
        groups[call.name].append(call)
    return [
        {
            "tool": tool,
            "failed": len(found),
            "agents": len({call.agent for call in found}),
            "sessions": len({call.session for call in found}),
            "last_at": max(call.at for call in found),
        }
        for tool, found in groups.items()
    ]


def latency(view: View) -> list[Row]:
    took: dict[int, list[float]] = defaultdict(list)
    for call in view.world.calls():
        if view.within(call.at) and "duration_ms" in call.metadata:
            took[view.bin(call.at)].append(call.metadata["duration_ms"])
    return [
        {"time": at, "p50": sorted(found)[(len(found) - 1) // 2], "p95": max(found)}
        for at, found in sorted(took.items())
    ]


def marks(view: View) -> list[Row]:
    rows = answers.scars_and_terminations(view.world, view.asked)
    return [
        {**{name: value for name, value in row.items() if name != "score_after"}, "at": micros(row["at"])}
        for row in rows
    ]


def budget_left(view: View) -> list[Row]:
    least: dict[tuple[int, str], int] = {}
    for paid in view.charged():
        place = view.bin(paid.at), paid.agent
        least[place] = min(least.get(place, 2**60), view.remaining_after(paid))
    return [{"time": at, "metric": agent, "value": left} for (at, agent), left in sorted(least.items())]


def budget_burn(view: View) -> list[Row]:
    rows = []
    secs = (view.until - view.since) / SECOND
    for agent in {paid.agent for paid in view.charged()}:
        own = [paid for paid in view.charged() if paid.agent == agent]
        spent, left = sum(paid.charged or 0 for paid in own), view.remaining_after(own[-1])
        dead = any(end["agent"] == agent and end["at"] >= own[-1].at for end in view.world.ended)
        rows.append(
            {
                "agent_id": agent,
                "spent": spent,
                "remaining": left,
                "spent_per_day": round(spent * 86_400 / secs, 2),
                "last_at": own[-1].at,
                "runs_out_at": None if dead else round(view.until + left / spent * secs * SECOND),
            }
        )
    return rows


def waiting_now(view: View) -> list[Row]:
    return [
        {
            "requested_at": act.at,
            "agent_id": act.agent,
            "action_id": act.action_id,
            "tool": act.tool,
            "cost": act.cost,
            "joins": act.joins,
            "expires_at": None,
            "expired": False,
        }
        for act in view.world.acts
        if act.decision == "pending"
    ]


def waiting_time(view: View) -> list[Row]:
    waited: dict[int, list[float]] = defaultdict(list)
    for act in view.waits():
        waited[view.bin(act.decided_at)].append((act.decided_at - act.at) / SECOND)
    return [
        {"time": at, "p50": statistics.median(found), "p95": _between(sorted(found), 0.95)}
        for at, found in sorted(waited.items())
    ]


def _between(ordered: Sequence[float], part: float) -> float:
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def tokens_over_time(view: View) -> list[Row]:
    rows = []
    for begin in range(view.bin(view.since), view.until + 1, view.bin_us):
        since, until = max(begin, view.since), min(begin + view.bin_us, view.until + 1)
        rows += [
            {"time": begin, "metric": row["model"] or "not named", "value": row["total_tokens"]}
            for row in answers.tokens_and_cost_by_model(view.world, Asked(since, until))
            if row["total_tokens"] is not None
        ]
    return rows


def tokens_by_model(view: View) -> list[Row]:
    rows = answers.tokens_and_cost_by_model(view.world, view.asked)
    return [{**row, "model": row["model"] or "not named"} for row in rows]


def damaged(view: View) -> list[Row]:
    agent, seq = DAMAGED
    [at] = [sent.at for sent in view.world.sent if (sent.agent, sent.seq) == DAMAGED][:1]
    problem = (
        "prev_hash is not the hash of the record before; "
        "columns or trace_data are not what the signed text says"
    )
    return [{"recorded_at": at, "agent_id": agent, "seq": seq, "problem": problem}] if view.within(at) else []


ANSWERS: Final[dict[str, Callable[[View], list[Row]]]] = {
    "Decisions": lambda view: one("decisions", len(view.decided())),
    "Denied or rejected": denied_percent,
    "Failed tool calls (figure)": lambda view: one("failed", len(view.failed())),
    "Approvals waiting": lambda view: one("waiting", len(waiting_now(view))),
    "Terminated": lambda view: one("terminated", len(view.ended())),
    "Damaged records (figure)": lambda view: one("damaged", len(damaged(view))),
    "Decisions by result": lambda view: binned(view, ((one.at, one.decision) for one in view.answers())),
    "Denied, by reason": by_reason,
    "Failed tool calls by tool": lambda view: binned(view, ((call.at, call.name) for call in view.failed())),
    "Failed tool calls": failed_by_tool,
    "Reliability and latency by tool": lambda view: answers.tool_reliability(view.world, view.asked),
    "Latency of tool calls": latency,
    "Scars by severity": lambda view: binned(view, ((scar["at"], scar["severity"]) for scar in view.scars())),
    "Scars and terminations": marks,
    "Budget left": budget_left,
    "Budget burn": budget_burn,
    "Agents near their limits": lambda view: answers.agents_near_limits(view.world, view.asked),
    "Waiting now": waiting_now,
    "Waiting time": waiting_time,
    "Tokens by model": tokens_over_time,
    "Tokens and cost by model": tokens_by_model,
    "Damaged records": damaged,
    "Clocks that cannot be believed": lambda view: answers.skewed_clocks(view.world, view.asked),
}
"""Of each panel by its title what it shows; "Last record of each agent" is asked of the table itself."""


__all__ = ["ANSWERS", "DAY", "MOST", "Row", "View"]
