-- The inbox: ids of messages that consumers have handled, each inserted in the
-- transaction of its effect. The table is a public interface: any program may
-- insert into it, in whatever language, with ON CONFLICT DO NOTHING, and go on
-- with its effect only if the row was inserted.

CREATE TABLE inbox (
  consumer TEXT    NOT NULL CHECK (octet_length(consumer) BETWEEN 1 AND 255),
  -- As the sender wrote it, not a digest: ids mostly rise with time, and so come to
  -- lie side by side.
  id       TEXT    NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 255),
  -- Microseconds since 1970, by the clock of the host.
  at       INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
  PRIMARY KEY (consumer, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX inbox_at ON inbox (consumer, at);
