//! Ten nodes on one PostgreSQL, three months of two tables each, millions of tasks that wait: what a scan costs, and how
//! many statements an idle cluster issues.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use indicatif::ProgressBar;
use redrive::store::{Dialect, Layout, Retention, Slice};
use redrive::{Context, Engine, Lane, SHARDS, Store, TaskId, Timestamp};

use super::raw::Raw;

const METHOD: &str = "bench.cluster";
const TABLES: u8 = 2;
const MONTHS: u32 = 3;
/// How long statements are counted.
const COUNT_FOR: Duration = Duration::from_secs(20);
/// How far ahead a scan looks, and how many rows of a slice it takes: as the engine does.
const AHEAD: Duration = Duration::from_secs(60);
const LIMIT: u32 = 1_000;

/// What was measured.
pub(super) struct Seen {
    pub(super) scans: Vec<Duration>,
    pub(super) rows: usize,
    pub(super) statements_per_second: f64,
    /// Of the tables, with their indexes.
    pub(super) megabytes: f64,
}

pub(super) async fn run(
    store: &Store,
    raw: &Raw,
    nodes: usize,
    pending: u64,
    bar: &ProgressBar,
) -> anyhow::Result<Seen> {
    ensure!(store.dialect() == Dialect::Postgres, "this is measured on PostgreSQL, which counts statements");
    let now = store.now().await?;
    prepare(store, raw, now).await?;
    let mut tables = raw.task_tables().await?;
    tables.truncate(usize::from(TABLES) * MONTHS as usize); // the last ones are the next month's
    bar.set_length(pending);
    for table in &tables {
        fill(raw, table, pending / tables.len() as u64, now).await?;
        bar.inc(pending / tables.len() as u64);
    }
    raw.execute(format!("VACUUM ANALYZE {}", tables.join(", "))).await?;
    store.rotate(&Retention::default(), now).await?; // all that have tasks are read
    let measured = measure(store, raw, nodes).await;
    let size = tables.iter().map(|t| format!("pg_total_relation_size('{t}')")).collect::<Vec<_>>().join(" + ");
    let bytes = raw.one(&format!("SELECT {size}")).await? as f64;
    raw.execute(format!("TRUNCATE {}", tables.join(", "))).await?;
    Ok(Seen { megabytes: bytes / 1_048_576.0, ..measured? })
}

/// Monthly tables of this month and the two before it, all empty.
async fn prepare(store: &Store, raw: &Raw, now: Timestamp) -> anyhow::Result<()> {
    if store.layout() == Layout::Single {
        ensure!(store.go_monthly(TABLES, now).await?.is_empty(), "other nodes work on this database");
    }
    let month = Duration::from_secs(31 * 24 * 3600);
    for back in (0..MONTHS).rev() {
        store.rotate(&Retention::default(), now - month * back).await?;
    }
    for table in raw.task_tables().await? {
        if raw.one(&format!("SELECT COUNT(*) FROM (SELECT 1 FROM {table} LIMIT 1) x")).await? > 0 {
            bail!("{table} has tasks: use a database of its own for this");
        }
    }
    Ok(())
}

/// Tasks that come due over the next day, in all shards of a table `retry_task_YYYYMM_B`.
async fn fill(raw: &Raw, table: &str, rows: u64, now: Timestamp) -> anyhow::Result<()> {
    let mut parts = table.split('_').skip(2);
    let (Some(month), Some(bucket)) = (parts.next(), parts.next()) else { return Ok(()) };
    let first: Timestamp = format!("{}-{}-02T00:00:00Z", &month[..4], &month[4..]).parse()?;
    let first = TaskId::first_at(first).in_month().as_i64();
    let (lane, now) = (Lane::of(METHOD).0, now.as_millis());
    // The id holds the time (from bit 22) and the shard (from bit 16).
    raw.execute(format!(
        "INSERT INTO {table} (id, lane, shard, method_name, params_json, next_retry_time, created_at, updated_at) \
         SELECT {first} + ((g / 32) << 22) + ((g % 32 * {TABLES} + {bucket}) << 16), {lane}, g % 32 * {TABLES} + {bucket}, \
                '{METHOD}', '{{\"order\":' || g || '}}', {now} + 600000 + g * 7919 % 86400000, {now}, {now} \
         FROM generate_series(0::bigint, {rows}::bigint - 1) g"
    ))
    .await
    .map(|_| ())
}

async fn measure(store: &Store, raw: &Raw, nodes: usize) -> anyhow::Result<Seen> {
    let mut engines = Vec::new();
    for _ in 0..nodes {
        let own = store.apart(4).await?;
        let handler = |_: Context, _: serde_json::Value| async { Ok(()) };
        engines.push(Engine::builder(own).register(METHOD, handler).discover(false).start().await?);
    }
    pause(Duration::from_secs(5)).await; // until all know of all
    let (before, start) = (raw.transactions().await?, now());
    pause(COUNT_FOR).await;
    let statements = (raw.transactions().await? - before) as f64 / start.elapsed().as_secs_f64();
    for engine in &engines {
        engine.stop().await;
    }
    let (mut scans, mut rows) = (Vec::new(), 0);
    let until = store.now().await? + Duration::from_secs(600) + AHEAD;
    for rank in (0..nodes).cycle().take(nodes * 20) {
        let ours = (0..SHARDS).filter(|shard| usize::from(*shard) % nodes == rank);
        let slice = |shard| Slice { lane: Lane::of(METHOD), shard, from: Timestamp::EPOCH };
        let slices: Vec<Slice> = ours.map(slice).collect();
        let start = now();
        rows += store.scan(&slices, until, LIMIT).await?.len();
        scans.push(start.elapsed());
    }
    let rows = rows / scans.len();
    Ok(Seen { scans, rows, statements_per_second: statements, megabytes: 0.0 })
}

#[expect(clippy::disallowed_methods, reason = "it lets time go by")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn now() -> Instant {
    Instant::now()
}
