"""What the cookbook has to answer on the story of ``cookbook_world``, computed from its account alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from db.cookbook import recipes
from tests.support.cookbook_world import (
    DAY,
    FIRST_DAY,
    SECOND,
    Act,
    Sent,
    World,
    day,
    moment,
    walk_up,
)

Row = dict[str, Any]


class Asked(msgspec.Struct, frozen=True):
    """What a question is narrowed to; times in microseconds."""

    since: int = 0
    until: int = 2**63
    agent: str | None = None

    def __call__(self, at: int, agent: str | None = None) -> bool:
        """Whether something of this time and, where the question takes one, this agent is asked about."""
        return self.since <= at < self.until and (agent is None or self.agent in {None, agent})

    def parameters(self, name: str) -> list[str]:
        known = {parameter.name for parameter in recipes()[name].parameters}
        given = []
        if self.since:
            given.append(f"since={moment(self.since)}")
        if self.until < 2**63:
            given.append(f"until={day(self.until)}")
        if self.agent is not None:
            given.append(f"agent={self.agent}")
        return [f"--param={one}" for one in given if one.partition("=")[0] in known]


def failed_call(one: Sent) -> Row:
    return {
        "recorded_at": moment(one.at),
        "agent_id": one.agent,
        "tool": one.name,
        "error": one.error or None,
        "session_id": one.session,
        "node_id": one.id,
    }


def failed_calls(world: World, asked: Asked) -> list[Row]:
    return [failed_call(one) for one in world.failed() if asked(one.at, one.agent)]


def failed_calls_by_tool_and_day(world: World, asked: Asked) -> list[Row]:
    groups: dict[tuple[str, str], list[Sent]] = defaultdict(list)
    for one in world.failed():
        if asked(one.at, one.agent):
            groups[day(one.at), one.name].append(one)
    return [
        {
            "day": on,
            "tool": tool,
            "failed": len(found),
            "agents": len({one.agent for one in found}),
            "sessions": len({one.session for one in found}),
        }
        for (on, tool), found in sorted(
            groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1])
        )
    ]


def tool_reliability(world: World, asked: Asked) -> list[Row]:
    groups: dict[str, list[Sent]] = defaultdict(list)
    for one in world.calls():
        if asked(one.at, one.agent):
            groups[one.name].append(one)
    rows = []
    for tool, found in groups.items():
        status = Counter(one.status for one in found)
        done = status["success"] + status["failed"] + status["harmful"]
        times = sorted(one.metadata["duration_ms"] for one in found if "duration_ms" in one.metadata)
        rows.append(
            {
                "tool": tool,
                "calls": len(found),
                "failed": status["failed"],
                "failed_percent": round(100 * status["failed"] / done, 1) if done else None,
                "denied": status["denied"],
                "median_ms": times[(len(times) - 1) // 2] if times else None,
                "p95_ms": times[-1] if times else None,
            }
        )
    return sorted(rows, key=lambda row: (-row["failed"], -row["calls"], row["tool"]))


def corrected_failures(world: World, asked: Asked) -> list[Row]:
    found = [pair for pair in world.corrections() if asked(pair[0].at)]
    found.sort(key=lambda pair: (pair[0].began or pair[0].at, pair[1].began or pair[1].at))
    return [
        {
            "failed_at": moment(failed.began or failed.at),
            "agent_id": failed.agent,
            "tool": failed.name,
            "error": failed.error or None,
            "relation": relation,
            "correction_type": other.type,
            "correction_name": other.name,
            "correction_status": other.status,
            "session_id": failed.session,
        }
        for failed, other, relation in found
    ]


def uncorrected_failures(world: World, asked: Asked) -> list[Row]:
    corrected = [failed for failed, _, _ in world.corrections()]
    return [failed_call(one) for one in world.failed() if one not in corrected and asked(one.at, one.agent)]


def retries_and_their_cost(world: World, asked: Asked) -> list[Row]:
    pairs = [
        (failed, other)
        for failed, other, _ in world.corrections()
        if other.type == "TOOL_CALL" and asked(failed.at)
    ]
    rows = []
    for tool in {failed.name for failed, _ in pairs}:
        retries = {other.id: other for failed, other in pairs if failed.name == tool}.values()
        rows.append(
            {
                "tool": tool,
                "failed": len({failed.id for failed, _ in pairs if failed.name == tool}),
                "retries": len(retries),
                "worked": sum(one.status == "success" for one in retries),
                "denied": sum(one.status == "denied" for one in retries),
                "retry_cost": total(cost(one) for one in retries if not one.guarded),
                "retry_budget": total(cost(one) for one in retries if one.guarded and one.status != "denied"),
                "retry_tokens": total(tokens(one)[2] for one in retries),
            }
        )
    return sorted(rows, key=lambda row: (-row["retries"], row["tool"]))


def path_above_failures(world: World, asked: Asked) -> list[Row]:
    return [
        {
            "recorded_at": moment(one.at),
            "session_id": one.session,
            "agent_id": one.agent,
            "depth": len(world.names(one)),
            "path": " > ".join(world.names(one)),
            "error": one.error or None,
        }
        for one in world.failed()
        if asked(one.at)
    ]


def denied_actions_by_reason(world: World, asked: Asked) -> list[Row]:
    groups: dict[tuple[str, str], list[Act]] = defaultdict(list)
    for act in world.acts:
        if act.decision in {"denied", "rejected"} and asked(act.decided_at, act.agent):
            groups[act.reason or "", act.tool].append(act)
    rows = [
        {
            "reason_code": reason,
            "tool": tool,
            "denied": len(found),
            "agents": len({act.agent for act in found}),
            "last_at": moment(max(act.decided_at for act in found)),
        }
        for (reason, tool), found in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["denied"], row["reason_code"], row["tool"]))


def approvals_by_person(world: World, asked: Asked) -> list[Row]:
    decided = [act for act in world.acts if act.held and act.by and asked(act.decided_at)]
    rows = []
    for person in {act.by for act in decided}:
        own = [act for act in decided if act.by == person]
        waits = sorted((act.decided_at - act.at) / SECOND for act in own)
        approved = [act for act in own if act.decision == "approved"]
        rows.append(
            {
                "person": person,
                "approved": len(approved),
                "approved_in_part": 0,
                "rejected": len(own) - len(approved),
                "denied": 0,
                "approved_cost": sum(act.cost for act in approved),
                "median_wait_secs": waits[(len(waits) - 1) // 2],
                "longest_wait_secs": waits[-1],
            }
        )
    return sorted(rows, key=lambda row: (-row["approved"], -row["rejected"], row["person"]))


def waiting_approvals(world: World, asked: Asked) -> list[Row]:
    return [
        {
            "requested_at": moment(act.at),
            "agent_id": act.agent,
            "action_id": act.action_id,
            "tool": act.tool,
            "cost": act.cost,
            "input": act.input,
            "joins": act.joins,
        }
        for act in world.acts
        if act.decision == "pending" and asked.agent in {None, act.agent}
    ]


def agents_near_limits(world: World, asked: Asked) -> list[Row]:
    del asked
    # Only "eager" lives and has used 80 per cent: 16 of 20; the others that have were terminated.
    spent = sum(act.cost for act in world.acts if act.agent == "eager" and act.decision == "allowed")
    return [
        {
            "agent_id": "eager",
            "budget_percent": 100 * spent / 20,
            "spent": spent,
            "remaining": 20 - spent,
            "scar_percent": 0,
            "scar_score": 0,
            "scar_limit": 10,
            "pending": 0,
        }
    ]


def budget_burn(world: World, asked: Asked) -> list[Row]:
    budgets = {"buyer": 200, "rookie": 20, "thrifty": 20, "eager": 20}
    rows = []
    for agent in sorted(budgets):
        total_spent = 0
        acts = [a for a in world.acts if a.agent == agent and a.decision in {"allowed", "approved"}]
        for on in sorted({day(act.decided_at) for act in acts}):
            own = [act for act in acts if day(act.decided_at) == on]
            total_spent += sum(act.cost for act in own)
            rows.append(
                {
                    "agent_id": agent,
                    "day": on,
                    "actions": len(own),
                    "spent": sum(act.cost for act in own),
                    "spent_total": total_spent,
                    "remaining": budgets[agent] - total_spent,
                }
            )
    first, last = day(max(asked.since, FIRST_DAY)), day(min(asked.until, FIRST_DAY + 30 * DAY))
    return [row for row in rows if first <= row["day"] < last and asked.agent in {None, row["agent_id"]}]


def tokens(one: Sent) -> tuple[int | None, int | None, int | None]:
    """Read, written and all tokens of a node, as far as it says."""
    said = one.metadata.get("tokens")
    if not isinstance(said, dict):
        return None, None, said
    read, written = said.get("input", said.get("prompt")), said.get("output", said.get("completion"))
    return read, written, said.get("total", None if read is None else read + written)


def cost(one: Sent) -> Any:
    """What a node says that it cost, in whatever unit; of an action what its policy says."""
    return one.metadata.get("cost")


def total(values: Any) -> Any:
    """A sum as SQL has it: None of nothing."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def counted_nodes(world: World) -> list[Sent]:
    """All nodes but the inner ends of calls that were seen from both."""
    return [one for one in world.nodes() if not (one.is_tool_call and world.is_inner_end(one))]


def tokens_and_cost_by_model(world: World, asked: Asked) -> list[Row]:
    nodes = [one for one in counted_nodes(world) if not one.guarded]
    parts = [one for one in nodes if one.type != "AGENT"]
    told = {one.session for one in parts if tokens(one)[2] is not None}
    priced = {one.session for one in parts if cost(one) is not None}
    models: dict[str | None, list[Sent]] = defaultdict(list)
    for one in nodes:
        named = "model" in one.metadata or tokens(one)[2] is not None
        repeated = one.type == "AGENT" and one.session in told
        costs = cost(one) is not None and not (one.type == "AGENT" and one.session in priced)
        if named and asked(one.at, one.agent) and (costs or not repeated):
            models[one.metadata.get("model")].append(one)
    rows = []
    for model, own in models.items():
        new = [one for one in own if not (one.type == "AGENT" and one.session in told)]
        read, written, all_ = (total(tokens(one)[at] for one in new) for at in range(3))
        rows.append(
            {
                "model": model,
                "calls": len(new),
                "input_tokens": read,
                "output_tokens": written,
                "total_tokens": all_,
                "cost": total(cost(o) for o in own if not (o.type == "AGENT" and o.session in priced)),
            }
        )
    return sorted(rows, key=lambda row: -(-1 if row["total_tokens"] is None else row["total_tokens"]))


def session_row(world: World, session: str, nodes: list[Sent]) -> Row:
    sent = [one for one in world.sent if one.session == session]
    asked_in = [act.at for act in world.acts if act.session == session]
    return {
        "session_id": session,
        "agents": sorted({one.agent for one in sent}),
        "nodes": len(nodes),
        "failed_tool_calls": sum(one.session == session for one in world.failed()),
        "first": min(one.at for one in sent),
        "last": max([one.at for one in sent] + asked_in),
    }


def tokens_and_cost_by_session(world: World, asked: Asked) -> list[Row]:
    rows = []
    for session, nodes in world.sessions().items():
        row = session_row(world, session, nodes)
        counted = [one for one in counted_nodes(world) if one.session == session]
        acts = [act for act in world.acts if act.session == session]
        charged = sum(act.cost for act in acts if act.decision in {"allowed", "approved"}) if acts else None

        def summed(value: Callable[[Sent], Any], counted: list[Sent] = counted) -> Any:
            of_parts = total(value(one) for one in counted if one.type != "AGENT")
            return total(map(value, counted)) if of_parts is None else of_parts

        first = row.pop("first")
        del row["last"]
        if asked(first):
            rows.append(
                {
                    **row,
                    "input_tokens": summed(lambda one: tokens(one)[0]),
                    "output_tokens": summed(lambda one: tokens(one)[1]),
                    "total_tokens": summed(lambda one: tokens(one)[2]),
                    "cost": summed(lambda one: None if one.guarded else cost(one)),
                    "budget_spent": charged,
                    "first_recorded_at": moment(first),
                }
            )
    return sorted(
        rows,
        key=lambda row: (
            -(-1 if row["total_tokens"] is None else row["total_tokens"]),
            -(-1 if row["cost"] is None else row["cost"]),
            row["first_recorded_at"],
        ),
    )


def sessions_without_output(world: World, asked: Asked) -> list[Row]:
    rows = []
    for session, nodes in world.sessions().items():
        row = session_row(world, session, nodes)
        first, last = row.pop("first"), row.pop("last")
        if asked(first) and not any(one.type == "OUTPUT" for one in nodes):
            rows.append({**row, "first_recorded_at": moment(first), "last_recorded_at": moment(last)})
    return sorted(rows, key=lambda row: row["first_recorded_at"])


def orphans(world: World, asked: Asked) -> list[Row]:
    rows = []
    for session, nodes in world.sessions().items():
        by_id = {one.id: one for one in nodes}
        for one in nodes:
            cyclic = walk_up(by_id, one)[-1] is None
            missing = one.parent is not None and one.parent not in by_id
            if (cyclic or missing) and asked(session_row(world, session, nodes)["first"]):
                rows.append(
                    {
                        "session_id": session,
                        "agent_id": one.agent,
                        "node_id": one.id,
                        "parent_id": one.parent,
                        "node_type": one.type,
                        "name": one.name,
                        "problem": "cycle" if cyclic else "missing parent",
                    }
                )
    return rows


def before_harm(world: World, asked: Asked) -> list[Row]:
    rows = []
    for harmful in world.acts:
        if harmful.outcome != "harmful" or not asked(harmful.reported_at, harmful.agent):
            continue
        own = [act for act in world.acts if act.agent == harmful.agent]
        upto = own[: own.index(harmful) + 1][::-1][:6]
        rows += [
            {
                "agent_id": act.agent,
                "harmful_action": harmful.action_id,
                "steps_before": steps,
                "action_id": act.action_id,
                "tool": act.tool,
                "decision": {"approved": "allowed", "pending": "pending_approval"}.get(
                    act.decision, act.decision
                ),
                "approved_by": act.by if act.decision == "approved" else None,
                "outcome": act.outcome,
                "outcome_detail": act.detail if act.outcome else None,
                "thought_process": act.thought,
                "requested_at": moment(act.at),
            }
            for steps, act in enumerate(upto)
        ]
    return rows


def scars_and_terminations(world: World, asked: Asked) -> list[Row]:
    rows = [
        {
            "at": moment(scar["at"]),
            "agent_id": scar["agent"],
            "event": "scar",
            "severity": scar["severity"],
            "score_after": scar["score"],
            "reason": scar["reason"],
            "action_id": scar["action_id"],
            "actor": scar["actor"],
        }
        for scar in world.scars
        if asked(scar["at"], scar["agent"])
    ]
    rows += [
        {
            "at": moment(end["at"]),
            "agent_id": end["agent"],
            "event": "terminated",
            "severity": None,
            "score_after": None,
            "reason": end["reason"],
            "action_id": None,
            "actor": "operator",
        }
        for end in world.ended
        if asked(end["at"], end["agent"])
    ]
    return sorted(rows, key=lambda row: (row["at"], row["event"]))


def conflicting_reports(world: World, asked: Asked) -> list[Row]:
    rows = [
        {
            "recorded_at": moment(one["at"]),
            "agent_id": one["agent"],
            "type": "outcome_conflict",
            "actor": "operator",
            "session_id": world.chains[one["agent"]],
            "data": one["data"],
        }
        for one in world.conflicts
        if asked(one["at"], one["agent"])
    ]
    for type_, said, stands in contradictions(world):
        at = max(said.at, stands.at)
        if asked(at) and asked.agent in {None, said.agent, stands.agent}:
            recorded = {"agent_id": stands.agent, "seq": stands.seq}
            data = {
                "node_id": said.id,
                "name": said.name,
                "reported": {**members(said, stands), "seq": said.seq},
                "recorded": {**members(stands, said), **recorded},
            }
            row = {"recorded_at": moment(at), "agent_id": said.agent, "type": type_, "actor": said.actor}
            rows.append({**row, "session_id": said.session, "data": data})
    return sorted(rows, key=lambda row: (row["recorded_at"], row["agent_id"]))


def contradictions(world: World) -> Iterator[tuple[str, Sent, Sent]]:
    """What was said of a node and does not stand, with what does."""
    for stands in world.nodes():
        for said in world.sent:
            if (said.session, said.id) != (stands.session, stands.id) or said.content == stands.content:
                continue
            if said.agent == stands.agent and not said.guarded:
                yield "node_resent", said, stands
            elif said.agent != stands.agent and said in world.nodes() and said.at > stands.at:
                yield "node_shared", said, stands


def members(one: Sent, than: Sent) -> dict[str, Any]:
    """The members of a node that are not those of the other."""
    other = than.content
    return {key: value for key, value in one.content.items() if key not in other or other[key] != value}


def skewed_clocks(world: World, asked: Asked) -> list[Row]:
    rows = []
    for agent in world.chains:
        skews = [
            (one.began - one.at) / SECOND
            for one in world.nodes()
            if one.agent == agent and one.began is not None and asked(one.at)
        ]
        skewed = [skew for skew in skews if skew > 300 or skew < -86_400]
        if skewed:
            rows.append(
                {
                    "agent_id": agent,
                    "nodes": len(skews),
                    "skewed": len(skewed),
                    "most_ahead_secs": max(skews),
                    "most_behind_secs": -min(skews),
                }
            )
    return sorted(rows, key=lambda row: (-row["skewed"], row["agent_id"]))


def unreported_actions(world: World, asked: Asked) -> list[Row]:
    return [
        {
            "decided_at": moment(act.decided_at),
            "agent_id": act.agent,
            "action_id": act.action_id,
            "tool": act.tool,
            "cost": act.cost,
            "outcome": act.outcome,
            "approved_by": act.by,
        }
        for act in world.acts
        if act.decision in {"allowed", "approved"}
        and act.outcome in {None, "unknown"}
        and asked(act.decided_at, act.agent)
    ]


def damaged_records(world: World, asked: Asked) -> list[Row]:
    del world, asked
    return []


def administrative_acts(world: World, asked: Asked) -> list[Row]:
    return [
        one | {"at": moment(one["at"])}
        for one in world.administered
        if asked(one["at"], one["agent_id"] or "")
    ]


ANSWERS: dict[str, Callable[[World, Asked], list[Row]]] = {
    answer.__name__: answer
    for answer in (
        administrative_acts,
        agents_near_limits,
        approvals_by_person,
        before_harm,
        budget_burn,
        conflicting_reports,
        corrected_failures,
        damaged_records,
        denied_actions_by_reason,
        failed_calls,
        failed_calls_by_tool_and_day,
        orphans,
        path_above_failures,
        retries_and_their_cost,
        scars_and_terminations,
        sessions_without_output,
        skewed_clocks,
        tokens_and_cost_by_model,
        tokens_and_cost_by_session,
        tool_reliability,
        uncorrected_failures,
        unreported_actions,
        waiting_approvals,
    )
}
"""The answer to each question, by its name."""
