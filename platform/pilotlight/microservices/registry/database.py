"""Store of workspaces, experiments and jobs of every org: one SQLite file of the home folder.

Written by REST and by `platformctl microservice register`; microservices are started from its records. Each method is
one transaction, called from the thread that opened it. Ids are unique within an org.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import json
from msgspec.structs import replace

from pilotlight.errors import Conflict, NotFound
from pilotlight.microservices.registry.records import NOT_STOPPED, Experiment, JobRecord, Kind, Status, StoredWorkspace
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.store.schema import Database

# ruff: noqa: A002, S608 - `id` is its name everywhere, and the parts of each statement are constants of this module

R = TypeVar("R", StoredWorkspace, Experiment, JobRecord)
FILE: Final = "microservices.db"
_OF: Final = "WHERE org = ? AND id = ?"
PAGE: Final = 100  # records of a list


class OrgStore:
    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, home: Home) -> "OrgStore":
        first = Path(__file__).with_name("schema.sql").read_text().split(";\n")
        return cls(Database(home.root / FILE, [first], "move it away: keys and jobs are then created again"))

    def close(self) -> None:
        self.database.close()

    def add_workspace(self, workspace: StoredWorkspace, most: int = 0) -> StoredWorkspace:
        """Add a record, as the other `add` methods do. Raise Conflict where the org has `most` of its kind; 0: any."""
        return self._add("workspaces", workspace, most)

    def workspace(self, org: str, id: str) -> StoredWorkspace:
        return self._one("workspaces", org, id, StoredWorkspace)

    def workspace_of(self, experiment: Experiment) -> StoredWorkspace | None:
        return self.workspace(experiment.org, experiment.workspace) if experiment.workspace else None

    def workspaces(self, org: str, after: str = "") -> list[StoredWorkspace]:
        """Return one page, in the order of their creation. `after`: id of the last record of the page before."""
        return self._page("workspaces", org, after, StoredWorkspace)

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
        return self._add("experiments", experiment, most, experiment.workspace)

    def experiment(self, org: str, id: str) -> Experiment:
        return self._one("experiments", org, id, Experiment)

    def experiments(self, org: str, after: str = "") -> list[Experiment]:
        return self._page("experiments", org, after, Experiment)

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
        return self._add("jobs", job, most, job.experiment, job.kind, job.status)

    def job(self, org: str, id: str) -> JobRecord:
        return self._one("jobs", org, id, JobRecord)

    def jobs(self, org: str, experiment: str, after: str = "") -> list[JobRecord]:
        self.experiment(org, experiment)
        return self._page("jobs", org, after, JobRecord, experiment)

    def jobs_of_kind(self, kind: Kind, *statuses: Status) -> Sequence[JobRecord]:
        """Return jobs of all orgs by kind and status, for a restarted process to restore."""
        rows = self.database.rows("SELECT value FROM jobs WHERE kind = ? ORDER BY rowid", (kind,))
        jobs = (json.decode(value, type=JobRecord) for (value,) in rows)
        return [job for job in jobs if job.status in statuses]

    def update_job(self, org: str, id: str, now: str, **changes: Any) -> JobRecord:
        with self.database.change(durable=True) as connection:
            job = replace(self.job(org, id), updated_at=now, **changes)
            connection.execute(f"UPDATE jobs SET status = ?, value = ? {_OF}", (job.status, json.encode(job), org, id))
        return job

    def delete_job(self, org: str, id: str) -> None:
        """Delete a job. Its id cannot be used again."""
        job = self.job(org, id)
        _check_stopped(job.id, job.status, job.kind)
        with self.database.change(durable=True) as connection:
            connection.execute(f"DELETE FROM jobs {_OF}", (org, id))
            connection.execute("INSERT OR IGNORE INTO retired VALUES (?, ?)", (org, id))

    def _add(self, table: str, record: R, most: int, *columns: str) -> R:
        """Insert a record. `columns`: those between its id and its value."""
        where, values, what, used = "org = ?", [record.org], table, [table]
        if isinstance(record, JobRecord):
            where, values, what = "org = ? AND kind = ?", [record.org, record.kind], f"jobs of the kind {record.kind}"
            used = ["jobs", "retired"]
        with self.database.change(durable=True) as connection:
            (count,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}", values).fetchone()
            if most and count >= most:
                problem = f"org {record.org} has {count} {what}, its limit"
                raise Conflict(problem, "delete some first")
            if any(
                connection.execute(f"SELECT 1 FROM {each} {_OF}", (record.org, record.id)).fetchone() for each in used
            ):
                problem = f"{_singular(table)} {record.id} already exists or existed: ids are used once"
                raise Conflict(problem, "omit the id to get a new one")
            row = (record.org, record.id, *columns, json.encode(record))
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        return record

    def _one(self, table: str, org: str, id: str, kind: type[R]) -> R:
        rows = self.database.rows(f"SELECT value FROM {table} {_OF}", (org, id))
        if not rows:
            raise NotFound(f"org {org} has no {_singular(table)} {id}")
        return json.decode(rows[0][0], type=kind)

    def _page(self, table: str, org: str, after: str, kind: type[R], experiment: str = "") -> list[R]:
        last = self.database.rows(f"SELECT rowid FROM {table} {_OF}", (org, after)) if after else [(0,)]
        if not last:
            problem = f"after = {after[:80]}: org {org} has no such {_singular(table)} any more"
            raise NotFound(problem, "list from the beginning")
        where = "org = ? AND rowid > ?" + (" AND experiment = ?" if experiment else "")
        sql = f"SELECT value FROM {table} WHERE {where} ORDER BY rowid LIMIT {PAGE}"
        rows = self.database.rows(sql, (org, last[0][0], *([experiment] if experiment else [])))
        return [json.decode(value, type=kind) for (value,) in rows]


def _singular(table: str) -> str:
    return table.removesuffix("s")


def _check_stopped(id: str, status: str, kind: str) -> None:
    if kind == "inference_microservice" and status in NOT_STOPPED:
        raise Conflict(f"microservice {id} has not been stopped", "stop it first")
    if kind == "batch" and status in ("pending", "running"):
        raise Conflict(f"batch job {id} was running when it was last checked", "read its status, or cancel it")
