-- Tables that come and go with the months. See store/tables.rs.

-- Which there are. is_read: whether scans look into it. The single task table is here, too, once there are monthly ones.
CREATE TABLE IF NOT EXISTS redrive_table (
  name VARCHAR(64) NOT NULL PRIMARY KEY,
  kind VARCHAR(10) NOT NULL,
  month INT NOT NULL,
  bucket INT NOT NULL,
  is_read SMALLINT NOT NULL,
  created_at BIGINT NOT NULL
) {options};
