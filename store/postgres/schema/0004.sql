-- Journals of operations: what each was asked, and the steps that it has taken.
CREATE TABLE {s}.journal (
  number    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant    text        COLLATE "C" NOT NULL,
  actor     text        COLLATE "C" NOT NULL,
  operation text        COLLATE "C" NOT NULL,
  key       text        COLLATE "C" NOT NULL,
  -- Of the execution that has opened it last. Nobody with a lower one writes to it.
  fence     bigint      NOT NULL,
  scheme    text        NOT NULL, -- of the fingerprint; '' is none
  sum       bytea       NOT NULL,
  input     bytea       NOT NULL,
  phase     text        NOT NULL CHECK (phase IN ('open', 'held', 'finished')),
  attempts  integer     NOT NULL DEFAULT 0,
  cause     text        NOT NULL DEFAULT '',
  -- When a completer has to look after it, or when it was finished.
  due       timestamptz NOT NULL,
  changed   timestamptz NOT NULL,
  CONSTRAINT journal_identity UNIQUE (key, operation, actor, tenant)
);

CREATE INDEX journal_due ON {s}.journal (phase, due);

CREATE TABLE {s}.journal_step (
  journal  bigint      NOT NULL REFERENCES {s}.journal ON DELETE CASCADE,
  position integer     NOT NULL,
  name     text        NOT NULL,
  input    bytea       NOT NULL,
  state    text        NOT NULL,
  result   bytea       NOT NULL,
  cause    text        NOT NULL,
  at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  started  timestamptz NOT NULL DEFAULT clock_timestamp(), -- for the last time
  PRIMARY KEY (journal, position)
);
