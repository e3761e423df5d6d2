-- Times are by the clock of the server. Texts compare byte by byte.

-- Numbers of records, fences, and positions in the trail. CACHE 1, so that a
-- later one is higher whatever session takes it. A sequence does not turn back
-- when a transaction does.
CREATE SEQUENCE {s}.counter AS bigint CACHE 1 NO CYCLE;

CREATE TABLE {s}.record (
  -- The fence of the claim that began the record. Its id, as programs tell it,
  -- is this number encrypted.
  number             bigint      CONSTRAINT record_number PRIMARY KEY,
  -- Of the latest claim; NULL while that is the first.
  fence              bigint,
  begun_at           timestamptz NOT NULL,
  -- NULL once completed.
  lease_until        timestamptz,
  settled_at         timestamptz,
  -- NULL unless completed.
  expires_at         timestamptz,
  -- NULL once completed: it is from settled_at to expires_at then.
  retention          interval,
  -- In the trail, of the entry that says that this was executed. NULL: number.
  position           bigint,
  -- The number and length of a body in pieces; NULL where it has none.
  pieces             bigint,
  pieces_size        bigint,
  -- Finds the identity, whose texts are then compared. Its first six bytes are of
  -- the key alone, and find a key of unknown scope.
  digest             uuid        NOT NULL,
  -- The random half of the claim; NULL once a resolution has ended it.
  token              uuid,
  -- 1 in progress, 2 completed, 3 unknown
  state              smallint    NOT NULL,
  reopened           boolean     NOT NULL DEFAULT false,
  tombstone          boolean     NOT NULL DEFAULT false,
  tenant             text        COLLATE "C" NOT NULL,
  actor              text        COLLATE "C" NOT NULL,
  operation          text        COLLATE "C" NOT NULL,
  key                text        COLLATE "C" NOT NULL,
  fingerprint_scheme text        COLLATE "C" NOT NULL,
  fingerprint_sum    bytea       NOT NULL,
  -- From here on what is empty is NULL.
  request_id         text        COLLATE "C",
  event_id           text        COLLATE "C",
  trace_id           text        COLLATE "C",
  cause              text        COLLATE "C",
  -- The result.
  codec              text        COLLATE "C",
  label              text        COLLATE "C",
  -- Bytes, because a text cannot hold every reference.
  reference          bytea,
  head               bytea,
  body               bytea,
  -- The arbiter.
  CONSTRAINT record_identity UNIQUE (digest)
  -- No CHECK constraints: the server reads and plans them anew in each statement
  -- that writes a row, which is a tenth of what the row costs.
)
-- Room in each page for renewals, which then touch no index.
WITH (fillfactor = 90);

CREATE INDEX record_expiry ON {s}.record (expires_at);
-- The rest are of what few records have, and conditions that cost nothing to see:
-- what is open (that it has a retention says so, which renewals leave alone); and
-- what has another fence than its number, or another position.
CREATE INDEX record_open ON {s}.record (number) WHERE retention IS NOT NULL;
CREATE INDEX record_fence ON {s}.record (fence) WHERE fence IS NOT NULL;
CREATE INDEX record_position ON {s}.record (position) WHERE position IS NOT NULL;
CREATE INDEX record_request ON {s}.record (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX record_event ON {s}.record (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX record_trace ON {s}.record (trace_id) WHERE trace_id IS NOT NULL;

-- The audit trail, but for executions whose record is still there: it is their
-- entry.
CREATE TABLE {s}.trail (
  position   bigint      CONSTRAINT trail_position PRIMARY KEY DEFAULT nextval('{q}.counter'),
  -- Of the record; NULL where the entry is of none, or of one of another store.
  number     bigint,
  fence      bigint      NOT NULL,
  at         timestamptz NOT NULL,
  -- Who wrote it, and the how many-th that was; NULL for an entry that was written
  -- in the commit of its change.
  instance   text        COLLATE "C",
  seq        bigint,
  -- How many answers an entry stands for, or how many entries one of kind lost.
  count      bigint,
  kind       text        COLLATE "C" NOT NULL,
  -- The record's id, where it is of another store.
  record_id  text        COLLATE "C",
  tenant     text        COLLATE "C" NOT NULL,
  actor      text        COLLATE "C" NOT NULL,
  operation  text        COLLATE "C" NOT NULL,
  key        text        COLLATE "C" NOT NULL,
  -- From here on what is empty is NULL.
  request_id text        COLLATE "C",
  event_id   text        COLLATE "C",
  trace_id   text        COLLATE "C",
  label      text        COLLATE "C",
  cause      text        COLLATE "C"
);

-- Entries come in the order of their times, nearly: a few bytes for each block
-- find a time.
CREATE INDEX trail_at ON {s}.trail USING brin (at);
CREATE INDEX trail_number ON {s}.trail (number) WHERE number IS NOT NULL;
CREATE INDEX trail_record ON {s}.trail (record_id) WHERE record_id IS NOT NULL;
CREATE INDEX trail_key ON {s}.trail (key);
CREATE INDEX trail_request ON {s}.trail (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX trail_event ON {s}.trail (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX trail_trace ON {s}.trail (trace_id) WHERE trace_id IS NOT NULL;

-- Bodies that are too large for a record, in pieces, each under a random number,
-- so that one that was dropped is never taken for another.
CREATE TABLE {s}.piece (
  body  bigint  NOT NULL,
  n     integer NOT NULL,
  bytes bytea   NOT NULL,
  CONSTRAINT piece_body PRIMARY KEY (body, n)
);
-- Large bodies are mostly compressed already; trying again costs more than it saves.
ALTER TABLE {s}.piece ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- Whoever takes records away, in the same commit: what a completed one says of its
-- execution goes into the trail, unless a resolution completed it, which has an
-- entry; and pieces end with their record. Not a foreign key: that would ask the
-- table of pieces for each record that goes, and few have any.
CREATE FUNCTION {s}.take_leave() RETURNS trigger LANGUAGE plpgsql AS $semel$
BEGIN
  INSERT INTO {s}.trail (position, number, fence, at, kind, tenant, actor, operation, key, request_id, event_id, trace_id, label)
  SELECT coalesce(position, number), number, coalesce(fence, number), settled_at, 'executed', tenant, actor, operation, key,
    request_id, event_id, trace_id, label
  FROM gone WHERE state = 2 AND token IS NOT NULL ORDER BY coalesce(position, number);
  IF EXISTS (SELECT FROM gone WHERE pieces IS NOT NULL) THEN
    DELETE FROM {s}.piece USING gone WHERE piece.body = gone.pieces;
  END IF;
  RETURN NULL;
END
$semel$;
CREATE TRIGGER record_gone AFTER DELETE ON {s}.record
  REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {s}.take_leave();

-- The version of this schema, and the secret that ids and digests are made with,
-- in one row. Another secret would give every record another id, and find none by
-- its identity.
CREATE TABLE {s}.version (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  version integer NOT NULL,
  secret  bytea   NOT NULL
);
-- 366 random bits of the server's.
INSERT INTO {s}.version (version, secret) VALUES (0,
  sha256(convert_to(concat(gen_random_uuid(), gen_random_uuid(), gen_random_uuid()), 'UTF8')));
