-- A released migration never changes.
ALTER TABLE revisions ADD COLUMN verification TEXT NOT NULL DEFAULT 'unknown';
ALTER TABLE revisions ADD COLUMN answer_failure TEXT NOT NULL DEFAULT '';
