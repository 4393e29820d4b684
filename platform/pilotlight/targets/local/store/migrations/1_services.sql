-- A released migration never changes.
CREATE TABLE services (
    namespace TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL, deleting INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, name)) WITHOUT ROWID;
-- Generations continue after a delete: a plan made before it must not match a service created again.
CREATE TABLE deleted (
    namespace TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)) WITHOUT ROWID;
CREATE TABLE releases (
    namespace TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL, at TEXT NOT NULL,
    document TEXT NOT NULL, catalogue BLOB NOT NULL, manifests BLOB NOT NULL, note TEXT NOT NULL,
    PRIMARY KEY (namespace, name, generation),
    FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE);
CREATE TABLE revisions (
    namespace TEXT NOT NULL, name TEXT NOT NULL, workload TEXT NOT NULL, revision TEXT NOT NULL,
    generation INTEGER NOT NULL, manifests BLOB NOT NULL, created_at TEXT NOT NULL,
    first_ready_at TEXT NOT NULL DEFAULT '', failed TEXT NOT NULL DEFAULT '',
    age_s REAL NOT NULL DEFAULT 0, age_at TEXT NOT NULL,
    PRIMARY KEY (namespace, name, workload, revision),
    FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE);
CREATE TABLE overrides (
    namespace TEXT NOT NULL, name TEXT NOT NULL, workload TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (namespace, name, workload),
    FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE) WITHOUT ROWID;
CREATE TABLE ports (
    namespace TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, port INTEGER NOT NULL UNIQUE,
    PRIMARY KEY (namespace, name, kind),
    FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE) WITHOUT ROWID;
CREATE TABLE replicas (id TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, namespace TEXT NOT NULL, service TEXT NOT NULL,
    object TEXT NOT NULL, type TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL);
CREATE INDEX events_by_service ON events (namespace, service, number);
