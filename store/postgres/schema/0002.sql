-- The outbox: messages to be delivered, written in the transaction of the change
-- that they tell of. The table is a public interface: any program may insert into
-- it, in whatever language, by INSERT or COPY, and the view outbox_event reads it.
-- Such a program sets
--
--   topic       where the message goes; relays are started for topics
--   key         the lane whose messages are delivered in order, or NULL
--   type        what the payload is
--   headers     a JSON object of texts, or NULL
--   payload     bytes; a text as convert_to('...', 'UTF8')
--   id          only where it has one of its own that receivers shall know; else a
--               UUID of version 7 is made
--   not_before  only to delay the first attempt
--   origin      the id of the record or message that it was enqueued under, or NULL
--
-- and leaves the rest to its defaults. It needs the rights to insert into outbox and
-- outbox_queue, and to use the sequence outbox_position. Rows are not changed once
-- they are there; a row that is deleted is not delivered.
--
-- The order of a lane is that of the commits. A transaction that has inserted into a
-- lane holds its lock, an advisory one, until it ends, and others that insert into
-- the lane wait. Who inserts into several lanes should do so in one order, or in one
-- statement that is sorted: where two wait for each other the server ends one
-- (SQLSTATE 40P01), which then had no effect. Each lane takes a place in the server's
-- table of locks until the transaction ends: a transaction that inserts into more than
-- half of what that is made for, 3,200 lanes where nothing is configured, is ended
-- (SQLSTATE 54000). It should be several, or max_locks_per_transaction be larger.
--
-- Times are by the clock of the server. Texts compare byte by byte.

-- CACHE 1, so that a later number is higher whatever session takes it.
CREATE SEQUENCE {s}.outbox_position AS bigint CACHE 1 NO CYCLE;

CREATE TABLE {s}.outbox (
  -- Given by the trigger, whatever an insert says.
  position   bigint      CONSTRAINT outbox_position_key PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  not_before timestamptz,
  -- The milliseconds since 1970 in place of the first 48 random bits of a UUID, and
  -- 7 in place of its 4.
  id         text        COLLATE "C" NOT NULL CONSTRAINT outbox_id UNIQUE DEFAULT encode(set_bit(set_bit(overlay(
    uuid_send(gen_random_uuid()) PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
    52, 1), 53, 1), 'hex')::uuid::text,
  topic      text        COLLATE "C" NOT NULL,
  key        text        COLLATE "C",
  type       text        COLLATE "C" NOT NULL DEFAULT '',
  headers    jsonb,
  origin     text        COLLATE "C",
  payload    bytea       NOT NULL DEFAULT ''
);

CREATE INDEX outbox_origin ON {s}.outbox (origin) WHERE origin IS NOT NULL;

-- What follows is the relays'.

-- What is not delivered, and what keeps its place in its lane though it is given up.
-- Apart from the messages, so that a claim writes few bytes and few indexes.
CREATE TABLE {s}.outbox_queue (
  position   bigint      CONSTRAINT outbox_queue_position PRIMARY KEY,
  -- The order in which those without a time are claimed.
  turn       bigint      NOT NULL,
  -- When a relay may claim it: -infinity is at once; epoch is at once, if it is the
  -- first of its lane, which is to be looked at; and otherwise the end of a delay or of
  -- a lease, so that a search by due stops at the first that is not. NULL while others
  -- of its lane come before it, and once it is given up. The first lease of what was due
  -- at once is not here: the row stays where it is in the index until that is renewed,
  -- or taken over.
  due        timestamptz,
  -- The end of the latest lease, in no index, so that most claims change none.
  until      timestamptz,
  -- Since when it could have been delivered.
  since      timestamptz NOT NULL,
  not_before timestamptz,
  -- Of the latest claim, a random number: who does not know it can settle nothing.
  fence      bigint      NOT NULL DEFAULT 0,
  size       integer     NOT NULL,
  attempts   integer     NOT NULL DEFAULT 0,
  lapses     integer     NOT NULL DEFAULT 0,
  redriven   integer     NOT NULL DEFAULT 0,
  -- 1 pending, 3 dead, 4 unknown
  state      smallint    NOT NULL DEFAULT 1,
  -- Whether it is known to be the first of its lane. Once it is, it stays so.
  head       boolean     NOT NULL,
  leased     boolean     NOT NULL DEFAULT false,
  unsure     boolean     NOT NULL DEFAULT false,
  settled_at timestamptz,
  topic      text        COLLATE "C" NOT NULL,
  -- NULL for what is in no lane, or in its lane no more.
  key        text        COLLATE "C",
  cause      text        COLLATE "C"
)
-- With room for the version that a claim makes, beside the one before.
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

CREATE INDEX outbox_queue_due ON {s}.outbox_queue (topic, due, turn) WHERE due IS NOT NULL;
CREATE INDEX outbox_queue_lane ON {s}.outbox_queue (topic, key, position) WHERE key IS NOT NULL;
CREATE INDEX outbox_queue_since ON {s}.outbox_queue (topic, since) WHERE state = 1;
CREATE INDEX outbox_queue_given_up ON {s}.outbox_queue (state) WHERE state <> 1;

-- What is delivered, or given up and in nobody's way.
CREATE TABLE {s}.outbox_settled (
  position   bigint      CONSTRAINT outbox_settled_position PRIMARY KEY,
  fence      bigint      NOT NULL,
  settled_at timestamptz NOT NULL,
  attempts   integer     NOT NULL,
  redriven   integer     NOT NULL,
  -- 2 delivered, 3 dead, 4 unknown
  state      smallint    NOT NULL,
  unsure     boolean     NOT NULL,
  cause      text        COLLATE "C"
);

CREATE INDEX outbox_settled_at ON {s}.outbox_settled (state, settled_at, position);

-- The lock of the lane first, and the number then, so that in a lane numbers rise as
-- commits do: whoever sees a message sees all of its lane that come before it. The
-- bounds are here and not in CHECK constraints because the server plans those anew for
-- each statement.
CREATE FUNCTION {s}.outbox_number() RETURNS trigger LANGUAGE plpgsql AS $semel$
DECLARE
  n bigint;
BEGIN
  IF octet_length(new.id) > 255 OR new.id !~ '^[-A-Za-z0-9._:]+$' THEN
    RAISE EXCEPTION 'outbox.id may hold 255 letters, digits and any of . _ : -' USING ERRCODE = 'check_violation';
  ELSIF octet_length(new.topic) NOT BETWEEN 1 AND 255 OR octet_length(new.key) NOT BETWEEN 1 AND 255 OR octet_length(new.type) > 255 OR octet_length(new.origin) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'outbox.topic, key, type and origin may hold 255 bytes, and topic, key and origin may not be empty' USING ERRCODE = 'check_violation';
  ELSIF octet_length(new.payload) > 1048576 THEN
    RAISE EXCEPTION 'outbox.payload may hold 1048576 bytes' USING ERRCODE = 'check_violation';
  ELSIF jsonb_typeof(new.headers) <> 'object' OR octet_length(new.headers::text) > 131072 THEN
    RAISE EXCEPTION 'outbox.headers must be a JSON object of at most 131072 bytes' USING ERRCODE = 'check_violation';
  ELSIF NOT isfinite(new.not_before) OR NOT isfinite(new.created_at) THEN
    RAISE EXCEPTION 'outbox.not_before and created_at must be finite' USING ERRCODE = 'check_violation';
  END IF;
  IF new.key IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock({s}.outbox_lane_lock(new.topic, new.key));
    -- How many messages with keys the transaction has inserted.
    n = coalesce(nullif(current_setting('semel.outbox_keyed', true), ''), '0')::bigint + 1;
    PERFORM set_config('semel.outbox_keyed', n::text, true);
    IF n % 1024 = 0 THEN
      -- All sessions have one table of locks: no transaction takes half of it.
      SELECT count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() INTO n;
      IF n > current_setting('max_locks_per_transaction')::bigint * current_setting('max_connections')::bigint / 2 THEN
        RAISE EXCEPTION 'a transaction has inserted messages into % lanes of the outbox, and holds a lock of each', n USING ERRCODE = 'program_limit_exceeded',
          HINT = 'Roll back: nothing of it is enqueued. Insert into fewer lanes in a transaction, or have the server started with a larger max_locks_per_transaction.';
      END IF;
    END IF;
  END IF;
  new.position = nextval('{q}.outbox_position');
  RETURN new;
END
$semel$;

-- Where two lanes share a lock, their writers wait for each other, and nothing else.
CREATE FUNCTION {s}.outbox_lane_lock(topic text, key text) RETURNS bigint LANGUAGE sql STABLE AS
  $semel$ SELECT hashtextextended($2, hashtextextended($1, '{q}.outbox'::regclass::oid::bigint)) $semel$;

CREATE TRIGGER outbox_number BEFORE INSERT ON {s}.outbox FOR EACH ROW EXECUTE FUNCTION {s}.outbox_number();

-- Whether a message is the first of its lane cannot be known here: what comes before
-- it may be settled at this moment, and a transaction at repeatable read would not see
-- it. Relays find out. But what is inserted together with a message before it waits
-- for that one.
CREATE FUNCTION {s}.outbox_line_up() RETURNS trigger LANGUAGE plpgsql AS $semel$
BEGIN
  INSERT INTO {s}.outbox_queue (position, turn, due, since, not_before, size, head, topic, key)
  SELECT position, position, CASE
      WHEN key IS NOT NULL AND n > 1 THEN NULL WHEN not_before > 'epoch' THEN not_before
      WHEN key IS NOT NULL THEN 'epoch' ELSE '-infinity' END,
    coalesce(not_before, created_at), not_before, octet_length(payload), key IS NULL, topic, key
  FROM (SELECT *, row_number() OVER (PARTITION BY topic, key ORDER BY position) AS n FROM added) AS added;
  RETURN NULL;
END
$semel$;
CREATE TRIGGER outbox_line_up AFTER INSERT ON {s}.outbox
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION {s}.outbox_line_up();

CREATE FUNCTION {s}.outbox_forget() RETURNS trigger LANGUAGE plpgsql AS $semel$
BEGIN
  DELETE FROM {s}.outbox_settled WHERE position IN (SELECT position FROM gone);
  DELETE FROM {s}.outbox_queue WHERE position IN (SELECT position FROM gone);
  RETURN NULL;
END
$semel$;
CREATE TRIGGER outbox_forget AFTER DELETE ON {s}.outbox
  REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {s}.outbox_forget();

CREATE FUNCTION {s}.outbox_forget_all() RETURNS trigger LANGUAGE plpgsql AS $semel$
BEGIN
  TRUNCATE {s}.outbox_queue, {s}.outbox_settled;
  RETURN NULL;
END
$semel$;
CREATE TRIGGER outbox_forget_all AFTER TRUNCATE ON {s}.outbox FOR EACH STATEMENT EXECUTE FUNCTION {s}.outbox_forget_all();

-- When messages leave their lanes, the next of each becomes its first. This looks with
-- a snapshot of its own, taken when the rows are gone. So whoever has found a message
-- that waits behind one of them, and locked that one to keep it from leaving, is seen
-- or waits. Where the next one is leaving too, there is another.
CREATE FUNCTION {s}.outbox_move_up() RETURNS trigger LANGUAGE plpgsql AS $semel$
DECLARE
  all_are boolean;
BEGIN
  IF NOT EXISTS (SELECT FROM gone WHERE key IS NOT NULL) THEN
    RETURN NULL;
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'messages with a key are removed at read committed only' USING ERRCODE = 'feature_not_supported';
  END IF;
  LOOP
    WITH next AS MATERIALIZED (
      SELECT n.position FROM (SELECT DISTINCT topic, key FROM gone WHERE key IS NOT NULL) AS lane
      CROSS JOIN LATERAL (
        SELECT position, head FROM {s}.outbox_queue AS q
        WHERE q.topic = lane.topic AND q.key = lane.key ORDER BY q.position LIMIT 1) AS n
      WHERE NOT n.head ORDER BY n.position),
    done AS (
      UPDATE {s}.outbox_queue AS q SET head = true, turn = nextval('{q}.outbox_position'),
        due = CASE WHEN q.not_before > 'epoch' THEN q.not_before ELSE '-infinity' END
      FROM next WHERE q.position = next.position AND NOT q.head
      RETURNING q.position)
    SELECT (SELECT count(*) FROM next) = (SELECT count(*) FROM done) INTO all_are;
    EXIT WHEN all_are;
  END LOOP;
  RETURN NULL;
END
$semel$;
CREATE TRIGGER outbox_move_up AFTER DELETE ON {s}.outbox_queue
  REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {s}.outbox_move_up();

-- The shape that Debezium's outbox event router expects, for those who read changes
-- instead of polling. Rows stay in it until they are swept.
CREATE VIEW {s}.outbox_event AS
SELECT id, topic AS aggregatetype, coalesce(key, id) AS aggregateid, type, payload FROM {s}.outbox;

-- Every message and where it is.
CREATE VIEW {s}.outbox_message AS
SELECT o.position, o.id, o.topic, o.key, o.type, o.headers, o.created_at, o.not_before, o.origin, q.state,
  CASE WHEN q.leased THEN q.until ELSE q.due END AS due, q.leased,
  q.attempts, q.lapses, q.unsure, q.redriven, q.key IS NOT NULL AS in_lane, q.settled_at, q.cause, o.payload
FROM {s}.outbox_queue AS q JOIN {s}.outbox AS o ON o.position = q.position
UNION ALL
SELECT o.position, o.id, o.topic, o.key, o.type, o.headers, o.created_at, o.not_before, o.origin, d.state, NULL, false,
  d.attempts, 0, d.unsure, d.redriven, false, d.settled_at, d.cause, o.payload
FROM {s}.outbox_settled AS d JOIN {s}.outbox AS o ON o.position = d.position;
