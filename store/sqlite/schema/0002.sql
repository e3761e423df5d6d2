-- The outbox: messages to be delivered, written in the transaction of the change
-- that they tell of. The table is a public interface: any program may insert into
-- it, in whatever language, and the view outbox_event reads it. Such a program sets
--
--   topic       where the message goes; relays are started for topics
--   key         the lane whose messages are delivered in order, or NULL
--   type        what the payload is
--   headers     a JSON object of texts, or NULL
--   payload     TEXT or BLOB
--   id          only where it has one of its own that receivers shall know; else a
--               UUID of version 7 is made
--   not_before  only to delay the first attempt: microseconds since 1970
--   origin      the id of the record or message that it was enqueued under, or NULL
--
-- and leaves the rest to its defaults. The order of a lane is that of the inserts,
-- which is that of the commits too, since SQLite has one writer at a time.
--
-- Times are microseconds since 1970, by the clock of the host.

CREATE TABLE outbox (
  position    INTEGER PRIMARY KEY AUTOINCREMENT,
  id          TEXT    NOT NULL UNIQUE
              DEFAULT (substr(printf('%012x', CAST(unixepoch('subsec') * 1000 AS INTEGER)), 1, 8) || '-' ||
                       substr(printf('%012x', CAST(unixepoch('subsec') * 1000 AS INTEGER)), 9) || '-7' ||
                       substr(lower(hex(randomblob(2))), 2) || '-' ||
                       substr('89ab', 1 + (random() & 3), 1) || substr(lower(hex(randomblob(2))), 2) || '-' ||
                       lower(hex(randomblob(6))))
              CHECK (octet_length(id) BETWEEN 1 AND 255 AND id NOT GLOB '*[^-A-Za-z0-9._:]*'),
  topic       TEXT    NOT NULL CHECK (octet_length(topic) BETWEEN 1 AND 255),
  key         TEXT    CHECK (octet_length(key) BETWEEN 1 AND 255),
  type        TEXT    NOT NULL DEFAULT '' CHECK (octet_length(type) <= 255),
  headers     TEXT    CHECK (octet_length(headers) <= 65536 AND json_type(headers) = 'object'),
  created_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
  not_before  INTEGER CHECK (not_before > 0),
  origin      TEXT    CHECK (octet_length(origin) BETWEEN 1 AND 255),

  -- What follows is the relays'.
  state       TEXT    NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead', 'unknown')),
  -- When a relay may claim it: 0 is at once, and otherwise the end of a delay or of
  -- a lease, so that a search by due stops at the first that is not. NULL while
  -- others of its lane come before it, and once it is settled.
  due         INTEGER DEFAULT 0 CHECK (due IS NULL OR state = 'pending'),
  -- The latest claim, a random number: who does not know it can settle nothing.
  fence       INTEGER NOT NULL DEFAULT 0,
  leased      INTEGER NOT NULL DEFAULT 0,
  attempts    INTEGER NOT NULL DEFAULT 0,
  lapses      INTEGER NOT NULL DEFAULT 0,
  unsure      INTEGER NOT NULL DEFAULT 0,
  redriven    INTEGER NOT NULL DEFAULT 0,
  -- Whether it keeps its place in its lane: until it is delivered, purged, or given
  -- up under the policy "skip".
  in_lane     INTEGER NOT NULL DEFAULT 1,
  settled_at  INTEGER,
  cause       TEXT,
  -- Last, so that searches do not read through it.
  payload     ANY     NOT NULL DEFAULT x''
              CHECK (typeof(payload) IN ('blob', 'text') AND octet_length(payload) <= 1048576)
) STRICT;

CREATE INDEX outbox_due ON outbox (topic, due) WHERE due IS NOT NULL;
CREATE INDEX outbox_lane ON outbox (topic, key, position) WHERE in_lane = 1 AND key IS NOT NULL;
CREATE INDEX outbox_origin ON outbox (position >> 11, origin) WHERE origin IS NOT NULL;
CREATE INDEX outbox_waiting ON outbox (topic, coalesce(not_before, created_at)) WHERE state = 'pending';
CREATE INDEX outbox_settled ON outbox (state, settled_at) WHERE state <> 'pending';

-- Of a lane only the first message has a time at which it is due.
CREATE TRIGGER outbox_enqueued AFTER INSERT ON outbox WHEN new.key IS NOT NULL OR new.not_before IS NOT NULL
BEGIN
  UPDATE outbox SET due = CASE
      WHEN new.key IS NOT NULL AND EXISTS (
        SELECT 1 FROM outbox o
        WHERE o.topic = new.topic AND o.key = new.key AND o.in_lane = 1 AND o.key IS NOT NULL AND o.position < new.position)
      THEN NULL ELSE coalesce(new.not_before, 0) END
  WHERE position = new.position;
END;
CREATE TRIGGER outbox_left AFTER UPDATE OF in_lane ON outbox
WHEN old.in_lane = 1 AND new.in_lane = 0 AND new.key IS NOT NULL
BEGIN
  UPDATE outbox SET due = coalesce(not_before, 0)
  WHERE due IS NULL AND state = 'pending' AND position = (
    SELECT o.position FROM outbox o
    WHERE o.topic = old.topic AND o.key = old.key AND o.in_lane = 1 AND o.key IS NOT NULL
    ORDER BY o.position LIMIT 1);
END;
CREATE TRIGGER outbox_removed AFTER DELETE ON outbox
WHEN old.in_lane = 1 AND old.key IS NOT NULL
BEGIN
  UPDATE outbox SET due = coalesce(not_before, 0)
  WHERE due IS NULL AND state = 'pending' AND position = (
    SELECT o.position FROM outbox o
    WHERE o.topic = old.topic AND o.key = old.key AND o.in_lane = 1 AND o.key IS NOT NULL
    ORDER BY o.position LIMIT 1);
END;

-- When relays last looked at the clock: a step back is seen by it.
CREATE TABLE outbox_clock (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  at  INTEGER NOT NULL
) STRICT;

INSERT INTO outbox_clock VALUES (1, 0);

-- The shape that Debezium's outbox event router expects, for those who read
-- changes instead of polling. Rows stay in it until they are swept.
CREATE VIEW outbox_event AS
SELECT id, topic AS aggregatetype, coalesce(key, id) AS aggregateid, type, payload FROM outbox;
