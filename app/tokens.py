"""Bearer tokens: made from the master key and proven again by it, so that none is ever stored.

An agent's token is ``agt_<tenant, 32 hex>.<agent id>.<HMAC-SHA256, 64 hex>``. The MAC covers tenant and
agent, so a token works for exactly one agent, and asking for it again gives the same one. Each revocation
begins another epoch; the tokens of later epochs name theirs, ``agt_….<agent id>.<epoch>.<MAC>``, and the MAC
covers it. The operator's token is a secret of the installation, and root's, if there is one. Comparisons are
constant-time on bytes (case H18).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from uuid import UUID

from app.chain.keys import derive
from app.errors import UnauthorizedError
from app.principal import Principal, Role

MAX_TOKEN_BYTES = 512
"""Longer than any token of ours; what is longer is refused before anything is computed from it."""

OPERATOR_NAME = "operator"
"""Name of the operator's key: the ``actor`` of what it does."""

ROOT_NAME = "root"
"""The same of root's."""

_PURPOSE = "agent-token"
_BEARER = re.compile(rb"bearer ([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
_AGENT_TOKEN = re.compile(
    rb"agt_([0-9a-f]{32})\.([A-Za-z0-9_-]{1,64})\.(?:([1-9][0-9]{0,8})\.)?([0-9a-f]{64})"
)

AGENT_PREFIX = "agt_"
"""Begins the tokens that are derived for agents."""


class Tokens:
    """Issues the tokens of agents and tells who a bearer is. The only maker of a ``Principal``."""

    def __init__(
        self, master_key: bytes, operator_token: str, default_tenant: UUID, *, root_token: str | None = None
    ) -> None:
        self._key = derive(master_key, _PURPOSE)
        self._operator = hashlib.sha256(operator_token.encode()).digest()
        self._root = None if root_token is None else hashlib.sha256(root_token.encode()).digest()
        self.default_tenant = default_tenant

    def issue(self, tenant_id: UUID, agent_id: str, epoch: int = 0) -> str:
        """The token of one agent after ``epoch`` revocations, the same each time."""
        named = f"{agent_id}.{epoch}" if epoch else agent_id
        return f"{AGENT_PREFIX}{tenant_id.hex}.{named}.{self._mac(tenant_id, named)}"

    def authenticate(self, header: bytes | None) -> Principal:
        """Who sends this ``Authorization`` header.

        Of an agent's token that is not all: its ``epoch`` must be the one in force, which the ledger knows.

        Args:
            header: the header's value as it came, or None when there was none.

        Raises:
            UnauthorizedError: no header, another scheme, not a token of ours. Never says which.
        """
        token = bearer_of(header)
        digest = hashlib.sha256(token).digest()
        if self._root is not None and hmac.compare_digest(digest, self._root):
            return Principal(tenant_id=self.default_tenant, role=Role.ROOT, name=ROOT_NAME)
        if hmac.compare_digest(digest, self._operator):
            return Principal(tenant_id=self.default_tenant, role=Role.OPERATOR, name=OPERATOR_NAME)
        return self._agent(token)

    def _agent(self, token: bytes) -> Principal:
        parts = _AGENT_TOKEN.fullmatch(token)
        if parts is None:
            raise UnauthorizedError
        tenant_id, agent_id = UUID(parts[1].decode()), parts[2].decode()
        epoch = "" if parts[3] is None else parts[3].decode()
        named = f"{agent_id}.{epoch}" if epoch else agent_id
        if not hmac.compare_digest(self._mac(tenant_id, named).encode(), parts[4]):
            raise UnauthorizedError
        return Principal(tenant_id, Role.AGENT, agent_id, agent_id, epoch=int(epoch or 0))

    def _mac(self, tenant_id: UUID, named: str) -> str:
        # The tenant has a fixed length and no agent's id has a dot, so no two tokens cover the same bytes.
        return hmac.digest(self._key, tenant_id.bytes + named.encode(), hashlib.sha256).hex()


def bearer_of(header: bytes | None) -> bytes:
    """The token of an ``Authorization`` header as it came.

    Raises:
        UnauthorizedError: no header, another scheme, or longer than any token.
    """
    if header is None or len(header) > MAX_TOKEN_BYTES:
        raise UnauthorizedError
    match = _BEARER.fullmatch(header)
    if match is None:
        raise UnauthorizedError
    return match[1]
