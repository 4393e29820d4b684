-- A released migration never changes.
CREATE TABLE canaries (
    namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (namespace, name),
    FOREIGN KEY (namespace, name) REFERENCES services ON DELETE CASCADE) WITHOUT ROWID;
