-- Bodies that are too large for a record are kept in pieces, each under a random
-- number, so that one that was dropped is never taken for another.

-- The number and length of the body in pieces; NULL where it has none.
ALTER TABLE {s}.record ADD COLUMN pieces bigint, ADD COLUMN pieces_size bigint;

CREATE TABLE {s}.piece (
  body  bigint  NOT NULL,
  n     integer NOT NULL,
  bytes bytea   NOT NULL,
  PRIMARY KEY (body, n)
);
-- Large bodies are mostly compressed already; trying again costs more than it saves.
ALTER TABLE {s}.piece ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- Pieces end with their record, however that ends. Not a foreign key: that would
-- ask the table of pieces for each record that goes, and few have any.
CREATE FUNCTION {s}.drop_pieces() RETURNS trigger LANGUAGE plpgsql AS $semel$
BEGIN
  DELETE FROM {s}.piece WHERE body = OLD.pieces;
  RETURN NULL;
END
$semel$;
CREATE TRIGGER record_deleted AFTER DELETE ON {s}.record
  FOR EACH ROW WHEN (OLD.pieces IS NOT NULL) EXECUTE FUNCTION {s}.drop_pieces();
CREATE TRIGGER record_replaced AFTER UPDATE OF pieces ON {s}.record
  FOR EACH ROW WHEN (OLD.pieces IS NOT NULL AND NEW.pieces IS DISTINCT FROM OLD.pieces) EXECUTE FUNCTION {s}.drop_pieces();
