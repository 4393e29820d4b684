-- A released migration never changes.
ALTER TABLE releases ADD COLUMN deployed_by TEXT NOT NULL DEFAULT '';
