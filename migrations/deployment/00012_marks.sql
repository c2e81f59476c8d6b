-- +goose Up
-- Every transaction that decides takes a number. They only grow: a database that gives out one which a process has committed
-- with before is a copy of before.
CREATE SEQUENCE dbcontroller.mark;
SELECT nextval('dbcontroller.mark'); -- what is read of a sequence that gave out nothing looks as if it had

-- The number of a decision, and the greatest of those ABORTED that are forgotten: an attempt that began before it cannot
-- commit, since the decision on it may be among them.
ALTER TABLE dbcontroller.attempt ADD COLUMN mark bigint NOT NULL DEFAULT nextval('dbcontroller.mark');
ALTER TABLE dbcontroller.meta ADD COLUMN forgotten bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE dbcontroller.meta DROP COLUMN forgotten;
ALTER TABLE dbcontroller.attempt DROP COLUMN mark;
DROP SEQUENCE dbcontroller.mark;
