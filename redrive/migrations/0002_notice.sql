-- Tasks that people are to be told of, and how telling them goes. See notify/mod.rs.

-- One row for each such task, written in the transaction that settles the failed attempt and deleted when all channels
-- have it. sent_to: those that have it already, as `,ops,chat,`.
CREATE TABLE IF NOT EXISTS redrive_notice (
  task_id {id},
  created_at BIGINT NOT NULL,
  failed_at BIGINT NOT NULL,
  attempts INT NOT NULL,
  method_name VARCHAR(500) NOT NULL,
  business_type VARCHAR(50),
  business_id VARCHAR(100),
  dead_reason VARCHAR(20),
  error_kind VARCHAR(100) NOT NULL,
  error_msg {text} NOT NULL,
  sent_to VARCHAR(1000) NOT NULL DEFAULT ','
) {options};

-- Channels by which people are told: when each may be used next, and how it went.
CREATE TABLE IF NOT EXISTS redrive_channel (
  name VARCHAR(50) NOT NULL PRIMARY KEY,
  next_at BIGINT NOT NULL DEFAULT 0,
  sent_at BIGINT,
  failed_at BIGINT,
  sent BIGINT NOT NULL DEFAULT 0,
  tries INT NOT NULL DEFAULT 0,
  last_error {text}
) {options};
