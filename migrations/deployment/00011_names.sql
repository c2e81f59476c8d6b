-- +goose Up
-- The grammar of names, as package schema has it (id.go) and docs/protocol.md writes it. Other tables have names that came
-- through the same door, or were copied from here.
ALTER TABLE dbcontroller.shadow ADD CONSTRAINT shadow_name_grammar CHECK (
    octet_length(name) <= 512
    AND name ~ '^[a-z][A-Za-z0-9]*/(?:[A-Za-z0-9._~!$&''()*+,;=:@-]|%(?:[0189A-F][0-9A-F]|2[0235F]|3[CEF]|5[B-E]|60|7[BCDF]))+(?:/[a-z][A-Za-z0-9]*/(?:[A-Za-z0-9._~!$&''()*+,;=:@-]|%(?:[0189A-F][0-9A-F]|2[0235F]|3[CEF]|5[B-E]|60|7[BCDF]))+)*$'
    -- Few names have a dot after a slash; only these are looked at for the ids . and ..
    AND (strpos(name, '/.') = 0 OR name !~ '/\.\.?(?:/|$)')
);

-- +goose Down
ALTER TABLE dbcontroller.shadow DROP CONSTRAINT shadow_name_grammar;
