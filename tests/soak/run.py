"""One soak test: two server processes, one PostgreSQL, the load, samples all the while, the verdicts."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from tests.bench import cpu, machine
from tests.bench.logins import administrator, sql_login
from tests.bench.stage import MASTER_KEY, OPERATOR_TOKEN
from tests.bench.steady import at_most, at_rate, percentile
from tests.soak import traffic, verdicts
from tests.soak.record import Record
from tests.soak.report import Kind, Report, Sample, Verdict
from tests.soak.traffic import RATES, Traffic
from tests.support.cli import run_trails
from tests.support.postgres import Database
from tests.support.server import ServerProcess

SAMPLE_SECONDS = 5.0
MIB = 1024 * 1024

_STATE = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()),
       pg_total_relation_size('trails.agent_audit_trails')
"""


def soak(database: Database, minutes: float) -> Report:
    """Runs for so many minutes on a migrated database, and judges."""
    on, date = machine.this_machine(), machine.today()
    record = Record()
    with tempfile.TemporaryDirectory() as folder:
        with _servers(database, Path(folder)) as servers, sql_login(database, "reader") as reader:
            readers = [reader] * traffic.LANES["sql"]
            load = Traffic(_ports(servers), readers, record, _lifetime(minutes * 60))
            run = _Run(database, servers, load)
            asyncio.run(run.go(minutes * 60))
        intact = _verified(database, folder)
    kinds = tuple(run.kinds(minutes * 60))
    judged = (
        verdicts.errors(kinds, load.faults),
        intact,
        record.verdict(database.admin_url),
        *verdicts.memory(run.samples, minutes),
        verdicts.latency(load.measured, minutes),
    )
    return Report(
        date,
        round(minutes, 2),
        minutes < verdicts.SHORTEST_MINUTES,
        on,
        machine.versions(machine.postgresql_version(database.admin_url)),
        judged,
        kinds,
        tuple(run.samples),
        tuple(load.faults),
    )


def _lifetime(seconds: float) -> int:
    """Actions of an agent such that several live one after the other even in a short run."""
    asked = traffic.RATES["ask"] / traffic.LANES["ask"] * seconds
    return max(1, min(traffic.LIFETIME, int(asked / 5)))


class _Run:
    """The load of one test and its samples."""

    def __init__(self, database: Database, servers: list[ServerProcess], load: Traffic) -> None:
        self.traffic = load
        self.samples: list[Sample] = []
        self._database = database
        self._pids = [server.pid for server in servers]
        self._port = _ports(servers)[0]
        self._seen = dict.fromkeys(RATES, 0)

    async def go(self, seconds: float) -> None:
        """Loads the servers for so long, and samples from the beginning to the end."""
        await traffic.observed(self._port)
        lanes = {kind: await self.traffic.lanes(kind) for kind in RATES}
        sampling = asyncio.create_task(self._sampled(min(SAMPLE_SECONDS, seconds / 10)))
        async with asyncio.TaskGroup() as group:
            for kind, acts in lanes.items():
                load = at_most if kind in verdicts.GROWING else at_rate
                group.create_task(load(acts, RATES[kind], seconds, self.traffic.measured[kind]))
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        self.traffic.close()

    def kinds(self, seconds: float) -> Iterator[Kind]:
        """What became of each kind of request."""
        for kind, found in self.traffic.measured.items():
            took = [each.seconds * 1e3 for each in found]
            p50, p99, longest = (percentile(took, part) for part in (0.5, 0.99, 1.0))
            yield Kind(kind, len(took), len(took) / seconds, p50, p99, longest, self.traffic.errors[kind])

    async def _sampled(self, every: float) -> None:
        admin = await asyncpg.connect(self._database.admin_url)
        postgres = cpu.postmaster(self._database.admin_url)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            while True:
                [(connections, size)] = await admin.fetch(_STATE)
                held = await asyncio.to_thread(self._held, postgres)
                self.samples.append(self._sample(loop.time() - began, held, connections, size))
                await asyncio.sleep(every)
        finally:
            admin.terminate()

    def _held(self, postgres: int) -> tuple[tuple[float, ...], float]:
        servers = tuple(cpu.memory(pid).rss / MIB for pid in self._pids)
        backends = sum(cpu.memory(pid).own for pid in (postgres, *cpu.children(postgres))) / MIB
        return servers, backends

    def _sample(
        self, at: float, held: tuple[tuple[float, ...], float], connections: int, size: int
    ) -> Sample:
        latencies: dict[str, tuple[int, float, float, float]] = {}
        for kind, found in self.traffic.measured.items():
            news = [each.seconds * 1e3 for each in found[self._seen[kind] :]]
            self._seen[kind] = len(found)
            if news:
                p50, p99, longest = (percentile(news, part) for part in (0.5, 0.99, 1.0))
                latencies[kind] = len(news), p50, p99, longest
        errors = sum(self.traffic.errors.values())
        return Sample(at, held[0], held[1], connections, size / MIB, errors, latencies)


@contextmanager
def _servers(database: Database, folder: Path) -> Iterator[list[ServerProcess]]:
    env = {"TRAILS_MASTER_KEY": MASTER_KEY, "TRAILS_OPERATOR_TOKEN": OPERATOR_TOKEN}
    first, second = (ServerProcess(database.app_url, folder, env=env) for _ in range(2))
    with first, second:
        yield [first, second]


def _ports(servers: list[ServerProcess]) -> list[int]:
    return [int(server.base_url.rpartition(":")[2]) for server in servers]


def _verified(database: Database, folder: str) -> Verdict:
    done = run_trails("verify", "--json", env=administrator(database, folder))
    found = json.loads(done.out)
    told = f"trails verify says {found['verdict']}: {found['checked']:,} records, exit code {done.code}"
    return Verdict("verification", done.code == 0, told)
