-- Times and durations are microseconds, by the clock of the host. What is empty
-- or not known is NULL where the column allows it.
--
-- Some indexes begin with a bucket: the number of a run of 2,048 rows. What is
-- in random order, as the ids of requests are, would in an index of its own touch
-- another page for each row, and the log would grow by that page; behind a bucket,
-- the rows of one commit share a few. Who searches such an index goes through the
-- buckets.

CREATE TABLE record (
  -- The fence of the claim that began the record. As the rowid it finds a
  -- claim's record in one step and keeps inserts at the end. The record's id is
  -- this number in disguise.
  number             INTEGER PRIMARY KEY,
  -- Of the identity: the first eight bytes of a keyed hash.
  digest             BLOB    NOT NULL,
  -- 1 in progress, 2 completed, 3 unknown
  state              INTEGER NOT NULL CHECK (state BETWEEN 1 AND 3),
  -- Of the latest claim or resolution; NULL where that is the number.
  fence              INTEGER,
  -- The random half of the claim; NULL once a resolution has ended it.
  token              BLOB,
  expires_at         INTEGER CHECK ((expires_at IS NOT NULL) = (state = 2)),
  -- Of the entry "executed" in the trail, which the record itself is for as long
  -- as it is there; see the table executed. NULL where there is no such entry.
  position           INTEGER,
  -- NULL once completed, as is settled_at, which is then retention before the
  -- end.
  lease_until        INTEGER,
  settled_at         INTEGER,
  begun_at           INTEGER NOT NULL,
  retention          INTEGER NOT NULL,
  reopened           INTEGER,
  tenant             TEXT    NOT NULL,
  actor              TEXT    NOT NULL,
  operation          TEXT    NOT NULL,
  key                TEXT    NOT NULL,
  fingerprint_scheme TEXT,
  fingerprint_sum    BLOB    NOT NULL,
  request_id         TEXT,
  event_id           TEXT,
  trace_id           TEXT,
  cause              TEXT,
  -- The result. Last, so that listings do not read through it.
  codec              TEXT,
  label              TEXT,
  reference          TEXT,
  tombstone          INTEGER,
  -- The number and length of a body in pieces.
  pieces             INTEGER,
  pieces_size        INTEGER,
  head               BLOB,
  body               BLOB
) STRICT;

-- The key first: keys that rise with time or by a counter then share pages. The
-- digest stands for tenant, actor and operation.
CREATE UNIQUE INDEX record_identity ON record (key, digest);
CREATE INDEX record_fence ON record (fence) WHERE fence IS NOT NULL;
CREATE INDEX record_expiry ON record (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX record_open ON record (state) WHERE expires_at IS NULL;
CREATE INDEX record_request ON record (number >> 11, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX record_event ON record (number >> 11, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX record_trace ON record (number >> 11, trace_id) WHERE trace_id IS NOT NULL;

-- What the entries "executed" of the trail say beyond their records. A row stands
-- for entries of one commit with positions one after the other. Who removes a
-- record writes its entry into trail.
CREATE TABLE executed (
  -- Of the first entry.
  position INTEGER PRIMARY KEY,
  instance INTEGER NOT NULL,
  -- Of the last entry.
  seq      INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  -- How many of the records are still there.
  records  INTEGER NOT NULL,
  -- The numbers of the records, each as the distance from the one before: signed
  -- varints.
  numbers  BLOB    NOT NULL
) STRICT;

CREATE INDEX executed_at ON executed (at);

-- The other entries of the trail, and those whose records are gone.
CREATE TABLE trail (
  position   INTEGER PRIMARY KEY,
  -- A random number, which the trail shows as a text.
  instance   INTEGER NOT NULL,
  seq        INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  kind       TEXT    NOT NULL,
  -- The number of the record, or an id that is none of this store's.
  record     INTEGER,
  record_id  TEXT,
  tenant     TEXT    NOT NULL,
  actor      TEXT    NOT NULL,
  operation  TEXT    NOT NULL,
  key        TEXT    NOT NULL,
  fence      INTEGER NOT NULL,
  request_id TEXT,
  event_id   TEXT,
  trace_id   TEXT,
  label      TEXT,
  cause      TEXT,
  -- How many answers an entry stands for, or how many entries one of kind lost.
  count      INTEGER
) STRICT;

CREATE INDEX trail_at ON trail (at);
CREATE INDEX trail_record ON trail (position >> 11, record) WHERE record IS NOT NULL;
CREATE INDEX trail_record_id ON trail (record_id) WHERE record_id IS NOT NULL;
-- The end of a key tells about as many apart as all of it.
CREATE INDEX trail_key ON trail (position >> 11, substr(key, -6));
CREATE INDEX trail_request ON trail (position >> 11, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX trail_event ON trail (position >> 11, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX trail_trace ON trail (position >> 11, trace_id) WHERE trace_id IS NOT NULL;

-- Bodies that are too large for a record are kept in pieces, each body under a
-- random number, so that one that was dropped is never taken for another.
CREATE TABLE piece (
  body  INTEGER NOT NULL,
  n     INTEGER NOT NULL,
  bytes BLOB    NOT NULL,
  PRIMARY KEY (body, n)
) STRICT;

-- Bodies that are on their way: their pieces are committed ahead of the record,
-- and no record names them yet.
CREATE TABLE staging (
  body  INTEGER PRIMARY KEY,
  -- The fence of the record that it is for. Once that is settled or gone, the
  -- body is of no use.
  fence INTEGER NOT NULL
) STRICT;

-- Pieces end with their record, however that ends.
CREATE TRIGGER record_deleted AFTER DELETE ON record WHEN old.pieces IS NOT NULL
BEGIN
  DELETE FROM piece WHERE body = old.pieces;
END;

-- The last fence and trail position given out. Deleting records and entries
-- does not touch them, so neither ever repeats. The secret is the key of ids and
-- digests: without it no record is found.
CREATE TABLE counter (
  one      INTEGER PRIMARY KEY CHECK (one = 1),
  fence    INTEGER NOT NULL,
  position INTEGER NOT NULL,
  secret   BLOB    NOT NULL
) STRICT;

INSERT INTO counter VALUES (1, 0, 0, randomblob(32));
