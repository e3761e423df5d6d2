-- Bodies that are too large for a record are kept in pieces, each under a random
-- number, so that one that was dropped is never taken for another.

-- The number and length of the body in pieces; NULL where it has none.
ALTER TABLE record ADD COLUMN pieces INTEGER;
ALTER TABLE record ADD COLUMN pieces_size INTEGER;

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
CREATE TRIGGER record_replaced AFTER UPDATE OF pieces ON record
WHEN old.pieces IS NOT NULL AND new.pieces IS NOT old.pieces
BEGIN
  DELETE FROM piece WHERE body = old.pieces;
END;
