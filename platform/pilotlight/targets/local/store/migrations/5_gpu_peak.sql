-- A released migration never changes.
ALTER TABLE revisions ADD COLUMN gpu_peak INTEGER NOT NULL DEFAULT 0;
