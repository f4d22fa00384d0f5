-- The schema of redrive, for all three databases. What they spell differently stands in braces and is filled in by
-- store/schema.rs: {task} {archive} {id} {text} {hash} {hot} {options} and, in views, {at:column} for a readable time.
-- Times are milliseconds since 1970 in BIGINT; JSON is text.
--
-- Every statement may be run again: MySQL cannot roll back schema changes, so a migration that was interrupted is
-- simply repeated.

-- The queue. Only PENDING (status 0) and RUNNING (1) tasks are here. The columns are ordered so that PostgreSQL needs no
-- padding. Few indexes on purpose: each costs every task. A claim changes no indexed column and no variable-width one.
CREATE TABLE IF NOT EXISTS {task} (
  id {id},
  next_retry_time BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  locked_by BIGINT NOT NULL DEFAULT 0,
  locked_at BIGINT NOT NULL DEFAULT 0,
  dedup_for BIGINT NOT NULL DEFAULT 0,
  deadline BIGINT,
  max_retry_duration BIGINT,
  first_failed_at BIGINT,
  last_error_time BIGINT,
  notified_at BIGINT,
  origin_id BIGINT,
  lane INT NOT NULL,
  version INT NOT NULL DEFAULT 0,
  attempt_count INT NOT NULL DEFAULT 0,
  postponements INT NOT NULL DEFAULT 0,
  crashes INT NOT NULL DEFAULT 0,
  wakes INT NOT NULL DEFAULT 0,
  max_attempts INT DEFAULT 16,
  shard SMALLINT NOT NULL,
  status SMALLINT NOT NULL DEFAULT 0,
  priority SMALLINT NOT NULL DEFAULT 0,
  cancel_requested SMALLINT NOT NULL DEFAULT 0,
  method_name VARCHAR(500) NOT NULL,
  params_json {text} NOT NULL,
  task_key VARCHAR(255),
  business_type VARCHAR(50),
  business_id VARCHAR(100),
  backoff_strategy VARCHAR(20),
  policy {text},
  last_error_kind VARCHAR(100),
  last_error_msg {text},
  history {text},
  traceparent VARCHAR(100),
  created_by VARCHAR(100),
  updated_by VARCHAR(100)
) {hot};
{index:{task}_scan ON {task} (lane, shard, next_retry_time)};
{index:{task}_business ON {task} (business_id, business_type)};

-- Who holds a key: one row for each live task that has one, and for a while after it if asked (expires_at).
CREATE TABLE IF NOT EXISTS redrive_key (
  key_hash {hash} NOT NULL PRIMARY KEY,
  task_id BIGINT NOT NULL,
  expires_at BIGINT
) {keyed};

-- Dead letters: what waits for a person. The task as it was, and what people did about it.
CREATE TABLE IF NOT EXISTS retry_dead (
  id {id},
  next_retry_time BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  locked_by BIGINT NOT NULL DEFAULT 0,
  locked_at BIGINT NOT NULL DEFAULT 0,
  dedup_for BIGINT NOT NULL DEFAULT 0,
  deadline BIGINT,
  max_retry_duration BIGINT,
  first_failed_at BIGINT,
  last_error_time BIGINT,
  notified_at BIGINT,
  origin_id BIGINT,
  dead_at BIGINT NOT NULL,
  next_remind_time BIGINT,
  acknowledged_at BIGINT,
  lane INT NOT NULL,
  version INT NOT NULL DEFAULT 0,
  attempt_count INT NOT NULL DEFAULT 0,
  postponements INT NOT NULL DEFAULT 0,
  crashes INT NOT NULL DEFAULT 0,
  wakes INT NOT NULL DEFAULT 0,
  max_attempts INT,
  remind_count INT NOT NULL DEFAULT 0,
  shard SMALLINT NOT NULL,
  status SMALLINT NOT NULL DEFAULT 0,
  priority SMALLINT NOT NULL DEFAULT 0,
  cancel_requested SMALLINT NOT NULL DEFAULT 0,
  method_name VARCHAR(500) NOT NULL,
  params_json {text} NOT NULL,
  task_key VARCHAR(255),
  business_type VARCHAR(50),
  business_id VARCHAR(100),
  backoff_strategy VARCHAR(20),
  policy {text},
  last_error_kind VARCHAR(100),
  last_error_msg {text},
  history {text},
  traceparent VARCHAR(100),
  created_by VARCHAR(100),
  updated_by VARCHAR(100),
  dead_reason VARCHAR(20) NOT NULL,
  owner VARCHAR(100),
  note {text}
) {options};
{index:retry_dead_lane ON retry_dead (lane, id)};
{index:retry_dead_business ON retry_dead (business_id, business_type)};
{index:retry_dead_remind ON retry_dead (next_remind_time)};

-- What has ended otherwise: done (if asked), cancelled, rejected at once, dropped, resolved, discarded, redriven.
CREATE TABLE IF NOT EXISTS {archive} (
  id {id},
  next_retry_time BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  locked_by BIGINT NOT NULL DEFAULT 0,
  locked_at BIGINT NOT NULL DEFAULT 0,
  dedup_for BIGINT NOT NULL DEFAULT 0,
  deadline BIGINT,
  max_retry_duration BIGINT,
  first_failed_at BIGINT,
  last_error_time BIGINT,
  notified_at BIGINT,
  origin_id BIGINT,
  ended_at BIGINT NOT NULL,
  redriven_as BIGINT,
  lane INT NOT NULL,
  version INT NOT NULL DEFAULT 0,
  attempt_count INT NOT NULL DEFAULT 0,
  postponements INT NOT NULL DEFAULT 0,
  crashes INT NOT NULL DEFAULT 0,
  wakes INT NOT NULL DEFAULT 0,
  max_attempts INT,
  shard SMALLINT NOT NULL,
  status SMALLINT NOT NULL DEFAULT 0,
  priority SMALLINT NOT NULL DEFAULT 0,
  cancel_requested SMALLINT NOT NULL DEFAULT 0,
  method_name VARCHAR(500) NOT NULL,
  params_json {text} NOT NULL,
  task_key VARCHAR(255),
  business_type VARCHAR(50),
  business_id VARCHAR(100),
  backoff_strategy VARCHAR(20),
  policy {text},
  last_error_kind VARCHAR(100),
  last_error_msg {text},
  history {text},
  traceparent VARCHAR(100),
  created_by VARCHAR(100),
  updated_by VARCHAR(100),
  ended_as VARCHAR(20) NOT NULL,
  dead_reason VARCHAR(20),
  result_json {text},
  ended_by VARCHAR(100),
  note {text}
) {options};
{index:{archive}_ended ON {archive} (ended_at)};
{index:{archive}_business ON {archive} (business_id, business_type)};

-- Nodes: a fresh number at each start. dead = 1 is the fence.
CREATE TABLE IF NOT EXISTS redrive_node (
  number BIGINT NOT NULL PRIMARY KEY,
  beat BIGINT NOT NULL,
  beat_at BIGINT NOT NULL,
  started_at BIGINT NOT NULL,
  dead SMALLINT NOT NULL DEFAULT 0,
  leaving SMALLINT NOT NULL DEFAULT 0,
  layout_seen INT NOT NULL DEFAULT 0,
  name VARCHAR(255) NOT NULL,
  build VARCHAR(100) NOT NULL,
  methods {text} NOT NULL
) {beats};

-- Named locks with terms: at most one owner a term; the term is the fence of what is done under the lock.
CREATE TABLE IF NOT EXISTS redrive_lock (
  name VARCHAR(100) NOT NULL PRIMARY KEY,
  term BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  owner VARCHAR(100)
) {options};

-- Counters that are never reset: node numbers, slots of id makers.
CREATE TABLE IF NOT EXISTS redrive_counter (
  name VARCHAR(100) NOT NULL PRIMARY KEY,
  value BIGINT NOT NULL
) {options};

-- Circuit breakers of lanes, as the cluster sees them.
CREATE TABLE IF NOT EXISTS redrive_gate (
  lane INT NOT NULL PRIMARY KEY,
  generation BIGINT NOT NULL,
  changed_at BIGINT NOT NULL,
  open_until BIGINT,
  failing_since BIGINT,
  opens INT NOT NULL DEFAULT 0,
  probes_given INT NOT NULL DEFAULT 0,
  probes_passed INT NOT NULL DEFAULT 0,
  state VARCHAR(20) NOT NULL,
  held VARCHAR(20),
  name VARCHAR(500) NOT NULL,
  why {text}
) {options};

-- Settings that can be changed at run time.
CREATE TABLE IF NOT EXISTS redrive_setting (
  name VARCHAR(255) NOT NULL PRIMARY KEY,
  version BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  updated_by VARCHAR(100),
  value {text} NOT NULL
) {options};

-- What people did.
CREATE TABLE IF NOT EXISTS redrive_audit (
  id {id},
  at BIGINT NOT NULL,
  who VARCHAR(100) NOT NULL,
  action VARCHAR(100) NOT NULL,
  target VARCHAR(500) NOT NULL,
  outcome VARCHAR(100) NOT NULL,
  before_json {text},
  after_json {text},
  note {text}
) {options};
{index:redrive_audit_at ON redrive_audit (at)};

-- Sagas, and their journals.
CREATE TABLE IF NOT EXISTS redrive_saga (
  id VARCHAR(255) NOT NULL PRIMARY KEY,
  seq BIGINT NOT NULL,
  driver_id BIGINT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  deadline BIGINT,
  version INT NOT NULL DEFAULT 0,
  state VARCHAR(30) NOT NULL,
  name VARCHAR(255) NOT NULL,
  input_hash {hash} NOT NULL,
  definition {text} NOT NULL,
  input {text} NOT NULL
) {options};
{index:redrive_saga_state ON redrive_saga (state, updated_at)};

CREATE TABLE IF NOT EXISTS redrive_saga_event (
  saga_id VARCHAR(255) NOT NULL,
  seq BIGINT NOT NULL,
  at BIGINT NOT NULL,
  event {text} NOT NULL,
  PRIMARY KEY (saga_id, seq)
) {options};

-- What a participant has done already, or must not do any more.
CREATE TABLE IF NOT EXISTS redrive_barrier (
  saga_id VARCHAR(255) NOT NULL,
  step VARCHAR(100) NOT NULL,
  op VARCHAR(10) NOT NULL,
  written_by VARCHAR(10) NOT NULL,
  created_at BIGINT NOT NULL,
  result {text},
  PRIMARY KEY (saga_id, step, op)
) {options};
{index:redrive_barrier_age ON redrive_barrier (created_at)};

-- For people who look with SQL.
{view} {task}_readable AS SELECT
  id, shard, CASE status WHEN 0 THEN 'PENDING' ELSE 'RUNNING' END AS status, method_name, task_key, business_type, business_id,
  attempt_count, max_attempts, {at:next_retry_time}, {at:created_at}, {at:deadline}, {at:first_failed_at},
  COALESCE(backoff_strategy, 'EXPONENTIAL') AS backoff_strategy, policy, last_error_kind, last_error_msg, {at:last_error_time},
  locked_by, CASE WHEN locked_at = 0 THEN NULL ELSE {time:locked_at} END AS locked_at, version, params_json
FROM {task};
{view} retry_dead_readable AS SELECT
  id, {at:dead_at}, dead_reason, method_name, task_key, business_type, business_id, attempt_count, last_error_kind,
  last_error_msg, {at:last_error_time}, {at:created_at}, owner, note, params_json
FROM retry_dead;
{view} redrive_node_readable AS SELECT
  number, name, build, CASE dead WHEN 0 THEN 'LIVE' ELSE 'DEAD' END AS state, {at:beat_at}, {at:started_at}, methods
FROM redrive_node;
