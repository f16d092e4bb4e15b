"""Records as events: CloudEvents 1.0 in their JSON form, with the record as it was signed in them.

The data of an event is the record's export line, unchanged: its hash and signature prove it to whoever checks
them, and nothing else does. The feed itself tells what stands in the table. It marks what it can see is not
in order: ``damaged`` where the text is not that of the hash (the data is a string then), and ``quarantined``
where the process that answers knows that the record's chain does not verify.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from app.chain.canonical import canonical
from app.chain.record import SignedRecord, export_line, format_timestamp, hash_text
from app.moment import to_microseconds

if TYPE_CHECKING:
    from uuid import UUID

    from app.chain.strict import JsonObject
    from db.feed import FeedRow

MEDIA_TYPE: Final = "application/cloudevents+json"
"""Of one event by itself (CloudEvents, JSON event format, section 3)."""

TYPE_PREFIX: Final = "trails.record."


def id_of(row: FeedRow) -> str:
    """The event's id: the same whenever the record is told."""
    return f"{row.log_uuid}/{row.seq}"


def event_of(tenant_id: UUID, row: FeedRow, *, quarantined: bool) -> str:
    """The event of a record, as JSON on one line."""
    text = row.signed_text or ""
    attributes: JsonObject = {
        "datacontenttype": "application/json",
        "id": id_of(row),
        "source": f"urn:lineage-trails:tenant:{tenant_id}",
        "specversion": "1.0",
        "subject": row.agent_id,
        "time": format_timestamp(to_microseconds(row.created_at)),
        "type": TYPE_PREFIX + row.kind,
    }
    if quarantined:
        attributes["quarantined"] = True
    data = export_line(SignedRecord(text, row.hash, row.signature))
    if hash_text(text) != row.hash or not _is_object(data):
        attributes["damaged"] = True
        data = canonical(data)
    return f'{{"data":{data},{canonical(attributes)[1:]}'


def _is_object(text: str) -> bool:
    """Whether somebody can read it: whoever may write to the table can write a hash that fits, too."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True
