//! Ten thousand hosts of HTTP tasks on one node, each with tasks that wait: what the node takes in memory, what a sweep takes, and how
//! long a task of a host that nobody has heard of waits until it starts.

use std::time::{Duration, Instant};

use anyhow::ensure;
use indicatif::ProgressBar;
use metrics_exporter_prometheus::PrometheusBuilder;
use redrive::store::Dialect;
use redrive::{Context, Engine, NewTask, SHARDS, Store, TaskId, Timestamp};
use tokio::sync::mpsc;

use super::ours::resident;
use super::raw::Raw;

const METHOD: &str = "bench.hosts";
const HOSTS: u64 = 10_000;
/// Tasks of new hosts that are timed, and the time between two of them.
const NEW_HOSTS: u64 = 20;
const BETWEEN: Duration = Duration::from_secs(2);
/// The waiting tasks come due over this time.
const SPREAD: Duration = Duration::from_secs(3600);
/// The longest sweep, as the engine's metrics say it.
const LONGEST: &str = "redrive_sweep_seconds{quantile=\"1\"}";

/// What was measured.
pub(super) struct Seen {
    pub(super) delays: Vec<Duration>,
    pub(super) megabytes: f64,
    pub(super) sweep: Duration,
}

pub(super) async fn run(store: &Store, raw: &Raw, tasks: u64, bar: &ProgressBar) -> anyhow::Result<Seen> {
    ensure!(store.dialect() == Dialect::Postgres, "this is measured on PostgreSQL, which makes the rows by itself");
    let metrics = PrometheusBuilder::new().install_recorder()?;
    remove(raw).await?;
    fill(store, raw, tasks, bar).await?;
    let (started, mut starts) = mpsc::unbounded_channel();
    let handler = move |_: Context, host: String| {
        _ = started.send(host);
        std::future::ready(Ok(()))
    };
    let worker = Engine::builder(store.clone()).register(METHOD, handler).split(METHOD).discover(false).start().await?;
    let enqueuer = Engine::builder(store.apart(4).await?).discover(false).start().await?;
    let mut seen = Seen { delays: Vec::new(), megabytes: 0.0, sweep: Duration::ZERO };
    for n in 0..NEW_HOSTS {
        pause(BETWEEN).await;
        let host = format!("new-{n}");
        let asked = now();
        enqueuer.enqueue(NewTask::new(METHOD, &host)?.no_key().part(&host)).await?;
        while starts.recv().await.is_some_and(|started| started != host) {}
        seen.delays.push(asked.elapsed());
        seen.megabytes = seen.megabytes.max(resident()?);
    }
    enqueuer.stop().await;
    worker.stop().await;
    seen.sweep = longest(&metrics.render());
    remove(raw).await?;
    Ok(seen)
}

async fn remove(raw: &Raw) -> anyhow::Result<()> {
    raw.execute(format!("DELETE FROM retry_task WHERE method_name = '{METHOD}'")).await?;
    raw.execute("VACUUM ANALYZE retry_task".into()).await.map(|_| ())
}

/// As many tasks of each host.
async fn fill(store: &Store, raw: &Raw, tasks: u64, bar: &ProgressBar) -> anyhow::Result<()> {
    bar.set_length(HOSTS);
    let now = store.now().await?;
    let each = (tasks / HOSTS).max(1);
    let first = TaskId::first_at(now - Duration::from_secs(3600)).as_i64();
    let steps = 500;
    for hosts in (0..HOSTS).step_by(steps) {
        let rows: Vec<String> = (hosts..hosts + steps as u64)
            .map(|host| lane(host).map(|l| format!("({host}, {l})")))
            .collect::<anyhow::Result<_>>()?;
        raw.execute(insert(&rows.join(", "), each, first, now)).await?;
        bar.inc(steps as u64);
    }
    raw.execute("VACUUM ANALYZE retry_task".into()).await?;
    bar.finish_and_clear();
    Ok(())
}

/// The id holds the time (from bit 22) and the shard (from bit 16).
fn insert(hosts: &str, each: u64, first: i64, now: Timestamp) -> String {
    let (now, spread) = (now.as_millis(), SPREAD.as_millis());
    format!(
        "INSERT INTO retry_task (id, lane, shard, method_name, params_json, next_retry_time, created_at, updated_at) \
         SELECT {first} + (((h.host * {each} + g) / 64) << 22) + ((g % {SHARDS}) << 16) + h.host % 64, h.lane, g % {SHARDS}, '{METHOD}', \
                '\"old-' || h.host || '\"', {now} + (h.host * 7919 + g * 104729) % {spread}, {now}, {now} \
         FROM (VALUES {hosts}) h(host, lane), generate_series(0::bigint, {each}::bigint - 1) g ON CONFLICT DO NOTHING"
    )
}

/// The lane of a host's tasks.
fn lane(host: u64) -> anyhow::Result<i32> {
    let host = format!("old-{host}");
    Ok(redrive::testing::task(NewTask::new(METHOD, &host)?.no_key().part(&host)).lane.0)
}

fn longest(metrics: &str) -> Duration {
    let longest = metrics.lines().find_map(|line| line.strip_prefix(LONGEST));
    let seconds = longest.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0);
    Duration::from_secs_f64(seconds)
}

#[expect(clippy::disallowed_methods, reason = "it lets time go by")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn now() -> Instant {
    Instant::now()
}
