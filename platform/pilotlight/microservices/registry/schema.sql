-- First version of microservices.db. A released migration never changes.

CREATE TABLE keys (
    id TEXT NOT NULL PRIMARY KEY, org TEXT NOT NULL, salt BLOB NOT NULL, hash BLOB NOT NULL,
    created_at REAL NOT NULL, expires_at REAL) WITHOUT ROWID;

CREATE TABLE tokens (
    hash TEXT NOT NULL PRIMARY KEY, org TEXT NOT NULL,
    key TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE, expires_at REAL NOT NULL) WITHOUT ROWID;

CREATE INDEX tokens_by_key ON tokens (key);

CREATE TABLE workspaces (
    org TEXT NOT NULL, id TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (org, id));

CREATE TABLE experiments (
    org TEXT NOT NULL, id TEXT NOT NULL, workspace TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (org, id));

CREATE TABLE jobs (
    org TEXT NOT NULL, id TEXT NOT NULL, experiment TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL,
    value BLOB NOT NULL, PRIMARY KEY (org, id),
    FOREIGN KEY (org, experiment) REFERENCES experiments (org, id) ON DELETE CASCADE);

CREATE INDEX jobs_by_experiment ON jobs (org, experiment);

CREATE INDEX jobs_by_kind ON jobs (kind, status);

-- Ids of deleted jobs, which must not be reused.
CREATE TABLE retired (org TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (org, id)) WITHOUT ROWID;
