BEGIN TRANSACTION;
CREATE TABLE canaries (
        namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (namespace, name),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE) WITHOUT ROWID;
INSERT INTO "canaries" VALUES('default','iris','{"current":null}',3);
CREATE TABLE deleted (
        namespace TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL,
        PRIMARY KEY (namespace, name)) WITHOUT ROWID;
CREATE TABLE events (
        number INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, namespace TEXT NOT NULL, service TEXT NOT NULL,
        object TEXT NOT NULL, type TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL);
INSERT INTO "events" VALUES(1,'2025-03-01T12:00:00Z','default','iris','Revision/r2','Normal','Deployed','generation 2');
CREATE TABLE overrides (
        namespace TEXT NOT NULL, name TEXT NOT NULL, workload TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (namespace, name, workload),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE) WITHOUT ROWID;
INSERT INTO "overrides" VALUES('default','iris','iris-predictor',X'7B226D696E5265706C69636173223A327D');
CREATE TABLE ports (
        namespace TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, port INTEGER NOT NULL UNIQUE,
        PRIMARY KEY (namespace, name, kind),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE) WITHOUT ROWID;
INSERT INTO "ports" VALUES('default','iris','http',9001);
CREATE TABLE releases (
        namespace TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL, at TEXT NOT NULL,
        document TEXT NOT NULL, catalogue BLOB NOT NULL, manifests BLOB NOT NULL, note TEXT NOT NULL, deployed_by TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (namespace, name, generation),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE);
INSERT INTO "releases" VALUES('default','iris',1,'2025-03-01T12:00:00Z','one',X'5B5D',X'5B7B226B696E64223A224465706C6F796D656E74222C226D65746164617461223A7B226E616D65223A22697269732D707265646963746F72227D7D5D','deploy','ana');
INSERT INTO "releases" VALUES('default','iris',2,'2025-03-01T12:00:00Z','two',X'5B5D',X'5B7B226B696E64223A224465706C6F796D656E74222C226D65746164617461223A7B226E616D65223A22697269732D707265646963746F72227D7D5D','deploy','ana');
CREATE TABLE replicas (id TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL);
INSERT INTO "replicas" VALUES('a',X'7B22706964223A377D');
CREATE TABLE revisions (
        namespace TEXT NOT NULL, name TEXT NOT NULL, workload TEXT NOT NULL, revision TEXT NOT NULL,
        generation INTEGER NOT NULL, manifests BLOB NOT NULL, created_at TEXT NOT NULL,
        first_ready_at TEXT NOT NULL DEFAULT '', failed TEXT NOT NULL DEFAULT '',
        age_s REAL NOT NULL DEFAULT 0, age_at TEXT NOT NULL, verification TEXT NOT NULL DEFAULT 'unknown', answer_failure TEXT NOT NULL DEFAULT '', gpu_peak INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (namespace, name, workload, revision),
        FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE);
INSERT INTO "revisions" VALUES('default','iris','iris-predictor','r1',1,X'5B7B226B696E64223A224465706C6F796D656E74222C226D65746164617461223A7B226E616D65223A22697269732D707265646963746F72227D7D5D','2025-03-01T12:00:00Z','2025-03-01T12:00:00Z','',0.0,'2025-03-01T12:00:00Z','verified','',0);
INSERT INTO "revisions" VALUES('default','iris','iris-predictor','r2',2,X'5B7B226B696E64223A224465706C6F796D656E74222C226D65746164617461223A7B226E616D65223A22697269732D707265646963746F72227D7D5D','2025-03-01T12:00:00Z','','',0.0,'2025-03-01T12:00:00Z','unknown','',0);
CREATE TABLE services (
        namespace TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL,
        created_at TEXT NOT NULL, updated_at TEXT NOT NULL, deleting INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (namespace, name)) WITHOUT ROWID;
INSERT INTO "services" VALUES('default','iris',2,'2025-03-01T12:00:00Z','2025-03-01T12:00:00Z',0);
CREATE INDEX events_by_service ON events (namespace, service, number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',1);
CREATE TABLE token_usage (
    day TEXT NOT NULL, namespace TEXT NOT NULL, service TEXT NOT NULL, model TEXT NOT NULL, caller TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt INTEGER NOT NULL, cached INTEGER NOT NULL, completion INTEGER NOT NULL,
    PRIMARY KEY (day, namespace, service, model, caller)) WITHOUT ROWID;
INSERT INTO "token_usage" VALUES('2025-03-01','default','iris','iris','search/ada',2,24,16,6);
COMMIT;
PRAGMA user_version = 6;
