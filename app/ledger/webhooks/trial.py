"""Trying a webhook: one event that is no record, sent once, at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import uuid4

from app.chain.canonical import canonical
from app.chain.record import format_timestamp
from app.ledger.webhooks.sender import Sender

if TYPE_CHECKING:
    from app.chain.strict import JsonObject
    from app.ledger.webhooks.hooks import Webhook
    from app.ledger.webhooks.target import Networks

TYPE = "trails.webhook.test"


async def tried(hook: Webhook, networks: Networks) -> JsonObject:
    """How one attempt went: ``{delivered, status, problem}``."""
    event_id = f"test-{uuid4()}"
    event: JsonObject = {
        "data": {"webhook_id": hook.webhook_id},
        "datacontenttype": "application/json",
        "id": event_id,
        "source": f"urn:lineage-trails:tenant:{hook.tenant_id}",
        "specversion": "1.0",
        "time": format_timestamp(time.time_ns() // 1_000),
        "type": TYPE,
    }
    async with Sender(hook.url, hook.secret, networks) as sender:
        attempt = await sender.send(event_id, canonical(event).encode())
    return {"delivered": attempt.is_taken, "status": attempt.status, "problem": attempt.problem}
