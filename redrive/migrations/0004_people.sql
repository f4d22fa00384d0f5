-- What people and the API need: tokens, reminders of dead letters, and indexes to look through the audit and the letters.

-- Tokens for the API. Of the secret there is only a hash (hexadecimal); the id is the public part of a token. See store/token.rs.
CREATE TABLE IF NOT EXISTS redrive_token (
  id VARCHAR(20) NOT NULL PRIMARY KEY,
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  last_used_at BIGINT,
  revoked_at BIGINT,
  name VARCHAR(100) NOT NULL,
  role VARCHAR(20) NOT NULL,
  hash VARCHAR(64) NOT NULL,
  created_by VARCHAR(100) NOT NULL,
  revoked_by VARCHAR(100)
) {options};

-- Reminders that wait to be sent, one at the most for each dead letter. sent_to: as in redrive_notice. A table of its own: a
-- node that knows nothing of reminders must not take them for notices. See store/remind.rs.
CREATE TABLE IF NOT EXISTS redrive_reminder (
  task_id {id},
  created_at BIGINT NOT NULL,
  remind_count INT NOT NULL,
  sent_to VARCHAR(1000) NOT NULL DEFAULT ','
) {options};

{index:retry_dead_reason ON retry_dead (dead_reason, id)};
{index:redrive_audit_who ON redrive_audit (who, id)};
{index:redrive_audit_target ON redrive_audit (target, id)};
