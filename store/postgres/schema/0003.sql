-- The inbox: ids of messages that consumers have handled, each inserted in the
-- transaction of its effect. The table is a public interface: any program may
-- insert into it, in whatever language, with ON CONFLICT DO NOTHING, several ids in
-- the order of their bytes, and go on with its effect only if the row was inserted.
CREATE TABLE {s}.inbox (
  -- At most 255 bytes each.
  consumer text        COLLATE "C" NOT NULL,
  -- As the sender wrote it, not a digest: ids mostly rise with time, and so come to
  -- lie side by side.
  id       text        COLLATE "C" NOT NULL,
  at       timestamptz NOT NULL DEFAULT statement_timestamp(),
  CONSTRAINT inbox_message PRIMARY KEY (consumer, id)
);

CREATE INDEX inbox_at ON {s}.inbox (consumer, at);
