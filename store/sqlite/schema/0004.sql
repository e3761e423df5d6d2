-- Journals of operations: what each was asked, and the steps that it has taken.
CREATE TABLE journal (
  number    INTEGER PRIMARY KEY,
  tenant    TEXT    NOT NULL,
  actor     TEXT    NOT NULL,
  operation TEXT    NOT NULL,
  key       TEXT    NOT NULL,
  -- Of the execution that has opened it last. Nobody with a lower one writes to it.
  fence     INTEGER NOT NULL,
  scheme    TEXT    NOT NULL, -- of the fingerprint; '' is none
  sum       BLOB    NOT NULL,
  input     BLOB    NOT NULL,
  phase     TEXT    NOT NULL CHECK (phase IN ('open', 'held', 'finished')),
  attempts  INTEGER NOT NULL DEFAULT 0,
  cause     TEXT    NOT NULL DEFAULT '',
  -- Microseconds since 1970, by the clock of the host. due is when a completer has to
  -- look after it, or when it was finished.
  due       INTEGER NOT NULL,
  changed   INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX journal_identity ON journal (key, operation, actor, tenant);
CREATE INDEX journal_due ON journal (phase, due);

CREATE TABLE journal_step (
  journal  INTEGER NOT NULL,
  position INTEGER NOT NULL,
  name     TEXT    NOT NULL,
  input    BLOB    NOT NULL,
  state    TEXT    NOT NULL,
  result   BLOB    NOT NULL,
  cause    TEXT    NOT NULL,
  at       INTEGER NOT NULL,
  started  INTEGER NOT NULL, -- for the last time
  PRIMARY KEY (journal, position)
) STRICT;
