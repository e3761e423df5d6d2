-- Times and durations are microseconds, by the clock of the host. What is empty
-- or not known is NULL where the column allows it.
--
-- Some indexes begin with a bucket: the number of a run of 2,048 rows. Ids and
-- many keys are random, so in an index of their own each would touch another
-- page, and the log would grow by that page; behind a bucket, the rows of one
-- commit share a few. Who searches such an index goes through the buckets.

CREATE TABLE record (
  -- The fence of the latest claim. As the rowid it finds a claim's record in
  -- one step, keeps inserts at the end, and is the order of listings.
  fence              INTEGER PRIMARY KEY,
  -- The random half of the claim; NULL once a resolution has ended it.
  token              BLOB,
  id                 TEXT    NOT NULL,
  tenant             TEXT    NOT NULL,
  actor              TEXT    NOT NULL,
  operation          TEXT    NOT NULL,
  key                TEXT    NOT NULL,
  -- 1 in progress, 2 completed, 3 unknown
  state              INTEGER NOT NULL CHECK (state BETWEEN 1 AND 3),
  reopened           INTEGER NOT NULL DEFAULT 0,
  begun_at           INTEGER NOT NULL,
  lease_until        INTEGER NOT NULL,
  retention          INTEGER NOT NULL,
  settled_at         INTEGER,
  expires_at         INTEGER CHECK ((expires_at IS NOT NULL) = (state = 2)),
  fingerprint_scheme TEXT    NOT NULL,
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
  head               BLOB,
  body               BLOB,
  -- The key first: it tells identities apart soonest, and finds a key of
  -- unknown scope.
  UNIQUE (key, operation, actor, tenant)
) STRICT;

CREATE INDEX record_id ON record (fence >> 11, id);
CREATE INDEX record_expiry ON record (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX record_open ON record (state) WHERE expires_at IS NULL;

CREATE TABLE trail (
  position   INTEGER PRIMARY KEY,
  instance   TEXT    NOT NULL,
  seq        INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  kind       TEXT    NOT NULL,
  record_id  TEXT    NOT NULL,
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
CREATE INDEX trail_record ON trail (position >> 11, record_id);
CREATE INDEX trail_key ON trail (position >> 11, key);
CREATE INDEX trail_request ON trail (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX trail_event ON trail (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX trail_trace ON trail (trace_id) WHERE trace_id IS NOT NULL;

-- The last fence and trail position given out. Deleting records and entries
-- does not touch them, so neither ever repeats.
CREATE TABLE counter (
  one      INTEGER PRIMARY KEY CHECK (one = 1),
  fence    INTEGER NOT NULL,
  position INTEGER NOT NULL
) STRICT;

INSERT INTO counter VALUES (1, 0, 0);
