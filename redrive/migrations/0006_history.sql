-- What happened in each minute, by node: for curves. Kept for 8 days. See store/history.rs.
-- waiting, letters and lag_ms are of the whole cluster, from the node that does the upkeep.
CREATE TABLE IF NOT EXISTS redrive_history (
  minute BIGINT NOT NULL,
  node BIGINT NOT NULL,
  enqueued BIGINT NOT NULL,
  done BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  dead BIGINT NOT NULL,
  waiting BIGINT,
  letters BIGINT,
  lag_ms BIGINT,
  PRIMARY KEY (minute, node)
) {keyed};
