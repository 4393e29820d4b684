"""Store of workspaces, experiments and jobs of every org: one SQLite file of the home folder.

Written by REST and by `platformctl microservice register`; microservices are started from its records. Each method is
one transaction, called from the thread that opened it. Ids are unique within an org.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import json

from pilotlight.errors import Conflict, NotFound
from pilotlight.microservices.registry.records import NOT_STOPPED, Experiment, JobRecord, Kind, Status, StoredWorkspace
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.store.schema import Database

# ruff: noqa: A002, S608 - `id` is its name everywhere, and the parts of each statement are constants of this module

T = TypeVar("T")
FILE: Final = "microservices.db"
_OF: Final = "WHERE org = ? AND id = ?"
# A released migration never changes. `retired` has ids of deleted jobs, which must not be reused.
FIRST: Final = (
    """CREATE TABLE keys (
        id TEXT NOT NULL PRIMARY KEY, org TEXT NOT NULL, salt BLOB NOT NULL, hash BLOB NOT NULL,
        created_at REAL NOT NULL, expires_at REAL) WITHOUT ROWID""",
    """CREATE TABLE tokens (
        hash TEXT NOT NULL PRIMARY KEY, org TEXT NOT NULL,
        key TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE, expires_at REAL NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX tokens_by_key ON tokens (key)",
    """CREATE TABLE workspaces (
        org TEXT NOT NULL, id TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (org, id))""",
    """CREATE TABLE experiments (
        org TEXT NOT NULL, id TEXT NOT NULL, workspace TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (org, id))""",
    """CREATE TABLE jobs (
        org TEXT NOT NULL, id TEXT NOT NULL, experiment TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL,
        value BLOB NOT NULL, PRIMARY KEY (org, id),
        FOREIGN KEY (org, experiment) REFERENCES experiments (org, id) ON DELETE CASCADE)""",
    "CREATE INDEX jobs_by_experiment ON jobs (org, experiment)",
    "CREATE INDEX jobs_by_kind ON jobs (kind, status)",
    "CREATE TABLE retired (org TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (org, id)) WITHOUT ROWID",
)

PAGE: Final = 100  # records of a list

MIGRATIONS: Final[Sequence[Sequence[str]]] = (FIRST,)


class OrgStore:
    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, home: Home) -> "OrgStore":
        return cls(Database(home.root / FILE, MIGRATIONS, "move it away: keys and jobs are then made anew"))

    def close(self) -> None:
        self.database.close()

    def add_workspace(self, workspace: StoredWorkspace, most: int = 0) -> StoredWorkspace:
        """Add a record, as the other `add` methods do. Raise Conflict where the org has `most` of its kind; 0: any."""
        with self.database.change(durable=True) as connection:
            _check_count(connection, "workspaces", workspace.org, most)
            _check_unused(connection, "workspaces", "workspace", workspace.org, workspace.id)
            row = (workspace.org, workspace.id, json.encode(workspace))
            connection.execute("INSERT INTO workspaces VALUES (?, ?, ?)", row)
        return workspace

    def workspace(self, org: str, id: str) -> StoredWorkspace:
        return self._one("workspaces", "workspace", org, id, StoredWorkspace)

    def workspaces(self, org: str, after: str = "") -> list[StoredWorkspace]:
        """Return one page, in the order of their creation. `after`: id of the last record of the page before."""
        return self._page("workspaces", "workspace", org, after, StoredWorkspace)

    def delete_workspace(self, org: str, id: str) -> None:
        self.workspace(org, id)
        with self.database.change(durable=True) as connection:
            sql = "SELECT id FROM experiments WHERE org = ? AND workspace = ?"
            if used := connection.execute(sql, (org, id)).fetchone():
                raise Conflict(f"workspace {id} is used by experiment {used[0]}", "delete that experiment first")
            connection.execute(f"DELETE FROM workspaces {_OF}", (org, id))

    def add_experiment(self, experiment: Experiment, most: int = 0) -> Experiment:
        if experiment.workspace:
            self.workspace(experiment.org, experiment.workspace)
        with self.database.change(durable=True) as connection:
            _check_count(connection, "experiments", experiment.org, most)
            _check_unused(connection, "experiments", "experiment", experiment.org, experiment.id)
            row = (experiment.org, experiment.id, experiment.workspace, json.encode(experiment))
            connection.execute("INSERT INTO experiments VALUES (?, ?, ?, ?)", row)
        return experiment

    def experiment(self, org: str, id: str) -> Experiment:
        return self._one("experiments", "experiment", org, id, Experiment)

    def experiments(self, org: str, after: str = "") -> list[Experiment]:
        return self._page("experiments", "experiment", org, after, Experiment)

    def delete_experiment(self, org: str, id: str) -> None:
        self.experiment(org, id)
        with self.database.change(durable=True) as connection:
            sql = "SELECT id, status, kind FROM jobs WHERE org = ? AND experiment = ?"
            for job, status, kind in connection.execute(sql, (org, id)).fetchall():
                _check_stopped(job, status, kind)
                connection.execute("INSERT OR IGNORE INTO retired VALUES (?, ?)", (org, job))
            connection.execute(f"DELETE FROM experiments {_OF}", (org, id))

    def add_job(self, job: JobRecord, most: int = 0) -> JobRecord:
        self.experiment(job.org, job.experiment)
        with self.database.change(durable=True) as connection:
            _check_count(connection, "jobs", job.org, most, job.kind)
            _check_unused(connection, "jobs", "job", job.org, job.id)
            _check_unused(connection, "retired", "job", job.org, job.id)
            row = (job.org, job.id, job.experiment, job.kind, job.status, json.encode(job))
            connection.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?)", row)
        return job

    def job(self, org: str, id: str) -> JobRecord:
        return self._one("jobs", "job", org, id, JobRecord)

    def jobs(self, org: str, experiment: str, after: str = "") -> list[JobRecord]:
        self.experiment(org, experiment)
        return self._page("jobs", "job", org, after, JobRecord, experiment)

    def jobs_of_kind(self, kind: Kind, *statuses: Status) -> Sequence[JobRecord]:
        """Return jobs of all orgs by kind and status, for a restarted process to restore."""
        jobs = self._all("SELECT value FROM jobs WHERE kind = ? ORDER BY rowid", (kind,), JobRecord)
        return [job for job in jobs if job.status in statuses]

    def update_job(self, org: str, id: str, now: str, **changes: Any) -> JobRecord:
        """Change fields of a record and return it."""
        with self.database.change(durable=True) as connection:
            row = connection.execute(f"SELECT value FROM jobs {_OF}", (org, id)).fetchone()
            if not row:
                raise _unknown("job", org, id)
            record = json.decode(row[0], type=JobRecord)
            job = msgspec.structs.replace(record, updated_at=now, **changes)
            connection.execute(f"UPDATE jobs SET status = ?, value = ? {_OF}", (job.status, json.encode(job), org, id))
        return job

    def delete_job(self, org: str, id: str) -> None:
        """Delete a job. Its id cannot be used again."""
        job = self.job(org, id)
        _check_stopped(job.id, job.status, job.kind)
        with self.database.change(durable=True) as connection:
            connection.execute(f"DELETE FROM jobs {_OF}", (org, id))
            connection.execute("INSERT OR IGNORE INTO retired VALUES (?, ?)", (org, id))

    def _one(self, table: str, what: str, org: str, id: str, kind: type[T]) -> T:
        rows = self.database.rows(f"SELECT value FROM {table} {_OF}", (org, id))
        if not rows:
            raise _unknown(what, org, id)
        return json.decode(rows[0][0], type=kind)

    def _page(self, table: str, what: str, org: str, after: str, kind: type[T], experiment: str = "") -> list[T]:
        last = self.database.rows(f"SELECT rowid FROM {table} {_OF}", (org, after)) if after else [(0,)]
        if not last:
            raise NotFound(f"after = {after[:80]}: org {org} has no such {what} by now", "list from the beginning")
        where = "org = ? AND rowid > ?" + (" AND experiment = ?" if experiment else "")
        sql = f"SELECT value FROM {table} WHERE {where} ORDER BY rowid LIMIT {PAGE}"
        return self._all(sql, (org, last[0][0], *([experiment] if experiment else [])), kind)

    def _all(self, sql: str, values: Sequence[Any], kind: type[T]) -> list[T]:
        return [json.decode(value, type=kind) for (value,) in self.database.rows(sql, values)]


def _check_count(connection: sqlite3.Connection, table: str, org: str, most: int, kind: str = "") -> None:
    if not most:
        return
    sql = f"SELECT count(*) FROM {table} WHERE org = ?" + (" AND kind = ?" if kind else "")
    (count,) = connection.execute(sql, (org, kind) if kind else (org,)).fetchone()
    if count >= most:
        what = f"jobs of the kind {kind}" if kind else table
        raise Conflict(f"org {org} has {count} {what}, which is the most that it may", "delete some first")


def _check_unused(connection: sqlite3.Connection, table: str, what: str, org: str, id: str) -> None:
    if connection.execute(f"SELECT 1 FROM {table} {_OF}", (org, id)).fetchone():
        raise Conflict(
            f"{what} {id} is there already, or was: ids are used once", "leave the id out to get a fresh one"
        )


def _check_stopped(id: str, status: str, kind: str) -> None:
    if kind == "inference_microservice" and status in NOT_STOPPED:
        raise Conflict(f"microservice {id} has not been stopped", "stop it first")
    if kind == "batch" and status in ("pending", "running"):
        raise Conflict(f"batch job {id} was under way when it was last looked at", "ask for its status, or cancel it")


def _unknown(what: str, org: str, id: str) -> NotFound:
    return NotFound(f"org {org} has no {what} {id}")
