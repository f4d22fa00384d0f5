//! The raw limit: what the database does when it is asked plainly, in a tight loop on one connection.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use redrive::{Lane, NewTask, SHARDS, Store};
use sqlx::pool::PoolOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, Row};

const METHOD: &str = "bench.task";
/// Of those that only wait.
const BACKLOG: &str = "bench.backlog";
const BATCH: usize = 1_000;

/// A plain pool of one connection.
pub(super) enum Raw {
    Sqlite(sqlx::SqlitePool),
    Postgres(sqlx::PgPool),
    MySql(sqlx::MySqlPool),
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn start() -> Instant {
    Instant::now()
}

/// The columns that a plain insert of a plain task writes.
const COLUMNS: &str =
    "id, next_retry_time, created_at, updated_at, lane, max_attempts, shard, method_name, params_json, task_key";

/// How many rows of each shard make a batch.
const EACH: usize = BATCH / SHARDS as usize + 1;
/// What a claim reads.
const READ: &str =
    "id, next_retry_time, method_name, params_json, attempt_count, policy, task_key, created_at, deadline";

/// Several rows a statement, for the databases that have no arrays: the same text for two drivers.
macro_rules! insert_values {
    ($tx:ident, $batch:ident, $ignore:literal) => {
        let rows: Vec<usize> = (0..$batch.ids.len()).collect();
        let hashes = $batch.hashes();
        for rows in rows.chunks(512) {
            if $batch.keyed() {
                let sql = format!("{} INTO redrive_key (key_hash, task_id) VALUES {}", $ignore, marks(rows.len(), 2));
                let keys = sqlx::query(AssertSqlSafe(sql));
                let keys = rows.iter().fold(keys, |query, i| query.bind(&hashes[*i]).bind($batch.ids[*i]));
                keys.execute(&mut *$tx).await?;
            }
            let sql = format!("INSERT INTO retry_task ({COLUMNS}) VALUES {}", marks(rows.len(), 10));
            let tasks = rows.iter().fold(sqlx::query(AssertSqlSafe(sql)), |query, i| {
                let query =
                    query.bind($batch.ids[*i]).bind($batch.due).bind($batch.now).bind($batch.now).bind($batch.lane);
                let query = query.bind(16).bind($batch.shards[*i]).bind(&$batch.method);
                query.bind(&$batch.params[*i]).bind(&$batch.keys[*i])
            });
            tasks.execute(&mut *$tx).await?;
        }
    };
}

impl Raw {
    pub(super) async fn connect(url: &str) -> anyhow::Result<Self> {
        use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
        let url = url.replacen("mariadb://", "mysql://", 1);
        if url.starts_with("sqlite:") {
            anyhow::ensure!(
                !url.contains(":memory:"),
                "a benchmark in memory says nothing about durability: use a file"
            );
            let options: SqliteConnectOptions = url.parse()?;
            let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
            let options = options.pragma("wal_autocheckpoint", "4000").busy_timeout(Duration::from_secs(10));
            return Ok(Self::Sqlite(PoolOptions::new().max_connections(1).connect_with(options).await?));
        }
        if url.starts_with("mysql:") {
            let pool = PoolOptions::new().max_connections(1).after_connect(|c: &mut sqlx::MySqlConnection, _| {
                Box::pin(async move {
                    c.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.map(|_| ())
                })
            });
            return Ok(Self::MySql(pool.connect(&url).await?));
        }
        let options: PgConnectOptions = url.parse()?;
        let options = options.disable_statement_logging(); // some are slow on purpose
        Ok(Self::Postgres(PoolOptions::new().max_connections(1).connect_with(options).await?))
    }

    pub(super) async fn execute(&self, sql: String) -> anyhow::Result<u64> {
        let sql = AssertSqlSafe(sql);
        Ok(match self {
            Self::Sqlite(pool) => sqlx::raw_sql(sql).execute(pool).await?.rows_affected(),
            Self::Postgres(pool) => sqlx::raw_sql(sql).execute(pool).await?.rows_affected(),
            Self::MySql(pool) => sqlx::raw_sql(sql).execute(pool).await?.rows_affected(),
        })
    }

    /// The monthly tables of tasks.
    pub(super) async fn task_tables(&self) -> anyhow::Result<Vec<String>> {
        let Self::Postgres(pool) = self else { return Ok(Vec::new()) };
        let sql = "SELECT name FROM redrive_table WHERE kind = 'task' AND month > 0 ORDER BY name";
        Ok(sqlx::query_scalar(sql).fetch_all(pool).await?)
    }

    /// A number, on PostgreSQL.
    pub(super) async fn one(&self, sql: &str) -> anyhow::Result<i64> {
        let Self::Postgres(pool) = self else { anyhow::bail!("this is asked of PostgreSQL only") };
        Ok(sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await?)
    }

    /// How many transactions this database has seen: statements by themselves are one each.
    pub(super) async fn transactions(&self) -> anyhow::Result<i64> {
        self.one("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()").await
    }

    /// Removes what benchmarks have written, and lets the database tidy up.
    pub(super) async fn clean_up(&self) -> anyhow::Result<()> {
        self.remove(METHOD).await?;
        self.remove(&super::http::method()).await
    }

    /// The same for the tasks that only wait.
    pub(super) async fn remove_backlog(&self) -> anyhow::Result<()> {
        self.remove(BACKLOG).await
    }

    /// The sagas of a run, with their journals.
    pub(super) async fn remove_sagas(&self) -> anyhow::Result<()> {
        let ours = format!("LIKE '{}-%'", super::sagas::NAME);
        self.execute(format!("DELETE FROM redrive_saga_event WHERE saga_id {ours}")).await?;
        self.execute(format!("DELETE FROM redrive_saga WHERE id {ours}")).await?;
        Ok(())
    }

    async fn remove(&self, method: &str) -> anyhow::Result<()> {
        self.remove_lanes(&[Lane::of(method)]).await
    }

    /// The same for all tasks of these lanes.
    pub(super) async fn remove_lanes(&self, lanes: &[Lane]) -> anyhow::Result<()> {
        let lanes = lanes.iter().map(|lane| lane.0.to_string()).collect::<Vec<_>>().join(", ");
        let ours = format!("retry_task WHERE lane IN ({lanes})");
        self.execute(format!("DELETE FROM redrive_key WHERE task_id IN (SELECT id FROM {ours})")).await?;
        self.execute(format!("DELETE FROM {ours}")).await?;
        match self {
            Self::Sqlite(_) => self.execute("PRAGMA wal_checkpoint(TRUNCATE)".into()).await?,
            Self::Postgres(_) => self.execute("VACUUM ANALYZE retry_task, redrive_key".into()).await?,
            Self::MySql(_) => 0,
        };
        Ok(())
    }

    /// Tasks as our own enqueue writes them, for our own drain.
    pub(super) async fn insert_for_ours(&self, store: &Store, tasks: u64) -> anyhow::Result<()> {
        let now = store.now().await?;
        for first in (0..tasks).step_by(BATCH) {
            let batch: redrive::Result<Vec<_>> =
                (first..(first + BATCH as u64).min(tasks)).map(|n| Ok(NewTask::new(METHOD, &n)?.no_key())).collect();
            store.insert(batch?, now).await?;
        }
        Ok(())
    }

    /// Other tasks that wait, due in an hour, of a method that nobody drains.
    pub(super) async fn fill_backlog(&self, tasks: u64, bar: ProgressBar) -> anyhow::Result<()> {
        for first in (0..tasks).step_by(BATCH) {
            self.insert_batch(first, BATCH.min((tasks - first) as usize), false, 3_600_000, BACKLOG).await?;
            bar.inc(BATCH as u64);
        }
        bar.finish_and_clear();
        Ok(())
    }

    pub(super) async fn insert(&self, tasks: u64, batch: usize, keyed: bool) -> anyhow::Result<Duration> {
        let started = start();
        for first in (0..tasks).step_by(batch) {
            self.insert_batch(first, batch.min((tasks - first) as usize), keyed, 0, METHOD).await?;
        }
        Ok(started.elapsed())
    }

    /// Claims and deletes batch by batch.
    pub(super) async fn drain(&self, tasks: u64) -> anyhow::Result<Duration> {
        self.insert(tasks, BATCH, false).await?;
        let started = start();
        let (mut left, mut floor) = (tasks, 0);
        while left > 0 {
            let taken = self.take_batch(floor).await?;
            anyhow::ensure!(!taken.is_empty(), "{left} raw tasks are missing");
            left -= (taken.len() as u64).min(left);
            floor = taken.iter().map(|(_, due)| *due).min().unwrap_or(floor);
        }
        Ok(started.elapsed())
    }

    /// Inserts, claims and deletes batch by batch.
    pub(super) async fn cycle(&self, tasks: u64) -> anyhow::Result<Duration> {
        let started = start();
        for first in (0..tasks).step_by(BATCH) {
            let floor = redrive::Clock::system().now().as_millis();
            self.insert_batch(first, BATCH.min((tasks - first) as usize), false, 0, METHOD).await?;
            self.take_batch(floor).await?;
        }
        Ok(started.elapsed())
    }

    async fn insert_batch(&self, first: u64, n: usize, keyed: bool, delay: i64, method: &str) -> anyhow::Result<()> {
        let batch = Batch::new(first, n, keyed, delay, method);
        match self {
            Self::Postgres(pool) => batch.insert_postgres(pool).await,
            Self::Sqlite(pool) => {
                let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
                insert_values!(tx, batch, "INSERT OR IGNORE");
                Ok(tx.commit().await?)
            }
            Self::MySql(pool) => {
                let mut tx = pool.begin().await?;
                insert_values!(tx, batch, "INSERT IGNORE");
                Ok(tx.commit().await?)
            }
        }
    }

    /// Claims a batch (scan by shard, update) and deletes it. Ids and due times; none is due before the floor, so index
    /// entries of rows that are gone are passed over, as ours does.
    async fn take_batch(&self, floor: i64) -> anyhow::Result<Vec<(i64, i64)>> {
        let now = redrive::Clock::system().now().as_millis();
        let lane = Lane::of(METHOD).0;
        match self {
            Self::Postgres(pool) => take_postgres(pool, lane, floor, now).await,
            Self::Sqlite(pool) => take_sqlite(pool, lane, floor, now).await,
            Self::MySql(pool) => take_mysql(pool, lane, floor, now).await,
        }
    }
}

/// Rows to be written.
struct Batch {
    ids: Vec<i64>,
    shards: Vec<i64>,
    params: Vec<String>,
    keys: Vec<Option<String>>,
    now: i64,
    due: i64,
    lane: i32,
    method: String,
}

impl Batch {
    fn new(first: u64, n: usize, keyed: bool, delay: i64, method: &str) -> Self {
        let now = redrive::Clock::system().now().as_millis();
        let base = if method == METHOD { 1 } else { 1_000_000_000_000 };
        let all = first..first + n as u64;
        Self {
            ids: all.clone().map(|i| base + i as i64).collect(),
            shards: all.clone().map(|i| (i % u64::from(SHARDS)) as i64).collect(),
            params: all.clone().map(|i| i.to_string()).collect(),
            keys: all.map(|i| keyed.then(|| format!("bench-{i}"))).collect(),
            now,
            due: now + delay,
            lane: Lane::of(method).0,
            method: method.to_owned(),
        }
    }

    fn keyed(&self) -> bool {
        self.keys.iter().all(Option::is_some)
    }

    /// Spread like a hash.
    fn hashes(&self) -> Vec<Vec<u8>> {
        let spread = |id: &i64| (*id as u128).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        self.ids.iter().map(|id| spread(id).to_be_bytes().to_vec()).collect()
    }

    async fn insert_postgres(&self, pool: &sqlx::PgPool) -> anyhow::Result<()> {
        let insert = format!(
            "INSERT INTO retry_task ({COLUMNS}) SELECT id, $5, $6, $6, $7, 16, shard, $8, params, key \
             FROM unnest($1::int8[], $2::int8[], $3::text[], $4::text[]) AS n(id, shard, params, key)"
        );
        let keyed = format!(
            "WITH k AS (INSERT INTO redrive_key (key_hash, task_id) SELECT * FROM unnest($9::bytea[], $1::int8[]) \
             ON CONFLICT (key_hash) DO NOTHING RETURNING task_id) {insert} WHERE id IN (SELECT task_id FROM k)"
        );
        let query = sqlx::query(AssertSqlSafe(if self.keyed() { keyed } else { insert }));
        let query = query.bind(&self.ids).bind(&self.shards).bind(&self.params).bind(&self.keys);
        let query = query.bind(self.due).bind(self.now).bind(self.lane).bind(&self.method);
        if self.keyed() { query.bind(self.hashes()).execute(pool) } else { query.execute(pool) }.await?;
        Ok(())
    }
}

async fn take_postgres(pool: &sqlx::PgPool, lane: i32, floor: i64, now: i64) -> anyhow::Result<Vec<(i64, i64)>> {
    let claim = format!(
        "UPDATE retry_task t SET status = 1, version = t.version + 1, locked_by = 1, locked_at = $2 WHERE t.ctid = ANY(ARRAY(\
          SELECT x.ctid FROM generate_series(0, 63) s CROSS JOIN LATERAL (SELECT ctid FROM retry_task WHERE lane = $1 AND shard = s \
          AND next_retry_time >= $3 AND next_retry_time <= $2 AND status = 0 ORDER BY next_retry_time LIMIT {EACH}) x)) \
         AND t.status = 0 RETURNING t.{}",
        READ.replace(", ", ", t.")
    );
    let rows = sqlx::query(AssertSqlSafe(claim)).bind(lane).bind(now).bind(floor).fetch_all(pool).await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let delete = "DELETE FROM retry_task WHERE id = ANY($1) AND version = 1 AND locked_by = 1";
    sqlx::query(delete).bind(&ids).execute(pool).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

async fn take_sqlite(pool: &sqlx::SqlitePool, lane: i32, floor: i64, now: i64) -> anyhow::Result<Vec<(i64, i64)>> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let find = format!(
        "SELECT t.id FROM (WITH RECURSIVE s(s) AS (VALUES (0) UNION ALL SELECT s + 1 FROM s WHERE s < 63) SELECT s FROM s) s \
         CROSS JOIN retry_task t WHERE t.id IN (SELECT x.id FROM retry_task x WHERE x.lane = $1 AND x.shard = s.s \
         AND x.next_retry_time >= $3 AND x.next_retry_time <= $2 AND x.status = 0 ORDER BY x.next_retry_time LIMIT {EACH})"
    );
    let found = sqlx::query(AssertSqlSafe(find)).bind(lane).bind(now).bind(floor).fetch_all(&mut *tx).await?;
    let ids: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
    let list = serde_json::to_string(&ids)?;
    let claim = format!(
        "UPDATE retry_task SET status = 1, version = version + 1, locked_by = 1, locked_at = $2 \
         WHERE id IN (SELECT value FROM json_each($1)) RETURNING {READ}"
    );
    let rows = sqlx::query(AssertSqlSafe(claim)).bind(&list).bind(now).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    let delete = "DELETE FROM retry_task WHERE id IN (SELECT value FROM json_each($1)) AND version = 1";
    sqlx::query(delete).bind(&list).execute(pool).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

async fn take_mysql(pool: &sqlx::MySqlPool, lane: i32, floor: i64, now: i64) -> anyhow::Result<Vec<(i64, i64)>> {
    let branch = format!(
        "(SELECT id FROM retry_task WHERE lane = ? AND shard = ? AND next_retry_time >= ? AND next_retry_time <= ? \
         AND status = 0 ORDER BY next_retry_time LIMIT {EACH})"
    );
    let find = vec![&*branch; usize::from(SHARDS)].join(" UNION ALL ");
    let find = sqlx::query(AssertSqlSafe(find));
    let found = (0..SHARDS).fold(find, |query, shard| query.bind(lane).bind(shard).bind(floor).bind(now));
    let found = found.fetch_all(pool).await?;
    let ids: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
    let list = serde_json::to_string(&ids)?;
    let source = "JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) s \
                  STRAIGHT_JOIN retry_task t FORCE INDEX (PRIMARY) ON t.id = s.id";
    let claim = format!(
        "UPDATE {source} SET t.status = 1, t.version = t.version + 1, t.locked_by = 1, t.locked_at = ? WHERE t.status = 0"
    );
    sqlx::query(AssertSqlSafe(claim)).bind(&list).bind(now).execute(pool).await?;
    let select = format!("SELECT t.{} FROM {source} WHERE t.locked_by = 1", READ.replace(", ", ", t."));
    let rows = sqlx::query(AssertSqlSafe(select)).bind(&list).fetch_all(pool).await?;
    let delete = format!("DELETE t FROM {source} WHERE t.version = 1");
    sqlx::query(AssertSqlSafe(delete)).bind(&list).execute(pool).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn marks(rows: usize, columns: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![&*row; rows].join(", ")
}
