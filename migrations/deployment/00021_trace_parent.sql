-- +goose Up
-- compatible with programs that know migration 20
-- The span of the request that began a deletion, as the header traceparent of W3C Trace Context: the work for the deletion in every
-- deployment belongs to the same trace.
ALTER TABLE dbcontroller.cause ADD COLUMN trace_parent text CONSTRAINT cause_trace_parent CHECK (octet_length(trace_parent) = 55);

-- +goose Down
ALTER TABLE dbcontroller.cause DROP COLUMN trace_parent;
