-- A released migration never changes.
CREATE TABLE token_usage (
    day TEXT NOT NULL, namespace TEXT NOT NULL, service TEXT NOT NULL, model TEXT NOT NULL, caller TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt INTEGER NOT NULL, cached INTEGER NOT NULL, completion INTEGER NOT NULL,
    PRIMARY KEY (day, namespace, service, model, caller)) WITHOUT ROWID;
