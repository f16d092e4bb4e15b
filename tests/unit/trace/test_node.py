"""The node of a guarded action has the shape that SQL readers query."""

from __future__ import annotations

from uuid import UUID

from app.trace.node import NodeStatus, action_node_id, fragment, tool_call_node

LOG = UUID("6b1f0c5e-53a1-4a52-9f6a-0b6e2a4f9d10")
SESSION = UUID("123e4567-e89b-12d3-a456-426614174000")


def test_the_id_of_a_node_is_fixed_and_of_its_chain() -> None:
    assert action_node_id(LOG, "act-1") == UUID("4bd7bab4-5cd5-5abf-ab81-84967ab02861")
    assert action_node_id(LOG, "act-1") != action_node_id(LOG, "act-2")
    assert action_node_id(LOG, "act-1") != action_node_id(SESSION, "act-1")


def test_a_node_has_all_members_and_its_status_cannot_be_overwritten() -> None:
    node = tool_call_node(
        node_id=SESSION,
        parent_id=None,
        name="search",
        inputs=[1],
        thought_process=None,
        status=NodeStatus.FAILED,
        outputs={"detail": "x", "status": "success"},
        metadata={"action_id": "act-1"},
    )
    assert node == {
        "node_id": str(SESSION),
        "parent_id": None,
        "node_type": "TOOL_CALL",
        "name": "search",
        "inputs": [1],
        "thought_process": None,
        "outputs": {"detail": "x", "status": "failed"},
        "metadata": {"action_id": "act-1"},
    }


def test_a_fragment_names_its_session_only_when_there_is_one() -> None:
    assert fragment({"node_id": "n"}, None) == {"total_nodes": 1, "trace_tree": [{"node_id": "n"}]}
    assert fragment({}, SESSION)["session_id"] == str(SESSION)
