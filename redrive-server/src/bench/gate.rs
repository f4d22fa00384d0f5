//! A million tasks for a target that is down and a thousand for one that is not: what the gate costs while it is open, and how the
//! million goes when the target is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use indicatif::ProgressBar;
use redrive::gate::{GateConfig, GateState};
use redrive::store::Dialect;
use redrive::{
    Backoff, Context, Engine, EngineConfig, ErrorKind, Jitter, Kind, Lane, MethodOptions, NewTask, Policy, Store,
    Verdict,
};

use super::ours::{Goal, start};
use super::raw::Raw;

const DEAD: &str = "bench.dead";
const HEALTHY: &str = "bench.healthy";
const HEALTHY_TASKS: u64 = 1_000;
/// Tasks that are inserted at once.
const BATCH: u64 = 10_000;
/// How long rows are counted while the gate is open, and for how long it stays open.
const COUNT_FOR: Duration = Duration::from_secs(10);
const OPEN_FOR: Duration = Duration::from_secs(30);

/// What was seen.
pub(super) struct Seen {
    /// Until the healthy ones were done, while the others waited.
    pub(super) healthy: Duration,
    /// Rows of the task table that were written in [`COUNT_FOR`] while the gate was open.
    pub(super) written: i64,
    /// Calls that reached the dead target from when the gate opened until it was back.
    pub(super) probes: u64,
    pub(super) cycles: u64,
    /// Of the million, how many were done in each half second after the gate closed, the first ten.
    pub(super) ramp: Vec<u64>,
    /// Until all were done.
    pub(super) drained: Duration,
    /// Attempts of the tasks that the dead target never saw.
    pub(super) burnt: i64,
}

#[derive(Debug, thiserror::Error)]
#[error("nobody answers")]
struct Down;

impl ErrorKind for Down {
    fn kind(&self) -> Kind {
        Kind::CONNECT
    }
}

#[derive(Clone)]
struct Target {
    up: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    goal: Arc<Goal>,
}

impl Target {
    fn call(&self) -> Result<(), Verdict> {
        self.calls.fetch_add(1, Ordering::AcqRel);
        if !self.up.load(Ordering::Acquire) {
            return Err(Verdict::of(&Down));
        }
        self.done.fetch_add(1, Ordering::AcqRel);
        self.goal.step();
        Ok(())
    }
}

pub(super) async fn run(store: &Store, raw: &Raw, tasks: u64, bar: &ProgressBar) -> anyhow::Result<Seen> {
    ensure!(
        store.dialect() == Dialect::Postgres,
        "this is measured on PostgreSQL, which counts the rows that are written"
    );
    raw.remove_lanes(&[Lane::of(DEAD), Lane::of(HEALTHY)]).await?;
    raw.execute(format!("DELETE FROM redrive_gate WHERE lane = {}", Lane::of(DEAD).0)).await?;
    fill(store, tasks, bar).await?;
    let (target, healthy) = (target(tasks), Goal::of(HEALTHY_TASKS));
    let engine = engine(store, &target, &healthy).await?;
    until(store, GateState::Open).await?;
    let before = target.calls.load(Ordering::Acquire);
    let started = start();
    let tasks_of_healthy = (0..HEALTHY_TASKS).map(|n| NewTask::new(HEALTHY, &n));
    engine.enqueue_many(tasks_of_healthy.collect::<redrive::Result<Vec<_>>>()?).await?;
    healthy.reached.notified().await;
    let healthy = started.elapsed();
    let written = rows_while_open(raw).await?;
    let opens = cycles(store).await?;
    while cycles(store).await? < opens + 1 {
        pause(Duration::from_millis(100)).await; // a cycle whose probes fail
    }
    until(store, GateState::Open).await?;
    let cycles = cycles(store).await?;
    let probes = target.calls.load(Ordering::Acquire) - before;
    let burnt = raw
        .one(&format!("SELECT COUNT(*) FROM retry_task WHERE lane = {} AND attempt_count > 0", Lane::of(DEAD).0))
        .await?;
    target.up.store(true, Ordering::Release);
    until(store, GateState::Closed).await?;
    let started = start();
    let mut ramp = Vec::new();
    for _ in 0..10 {
        let before = target.done.load(Ordering::Acquire);
        pause(Duration::from_millis(500)).await;
        ramp.push(target.done.load(Ordering::Acquire) - before);
    }
    if target.done.load(Ordering::Acquire) < tasks {
        target.goal.reached.notified().await;
    }
    let drained = started.elapsed();
    engine.stop().await;
    let left = raw.one("SELECT COUNT(*) FROM retry_task WHERE method_name LIKE 'bench.%'").await?;
    let dead = raw.one("SELECT COUNT(*) FROM retry_dead WHERE method_name LIKE 'bench.%'").await?;
    ensure!((left, dead) == (0, 0), "{left} tasks are left and {dead} are dead: something was lost");
    Ok(Seen { healthy, written, probes, cycles, ramp, drained, burnt })
}

/// Tasks for the dead target, due now, tried for ever.
async fn fill(store: &Store, tasks: u64, bar: &ProgressBar) -> anyhow::Result<()> {
    let policy = Policy { max_attempts: None, ..Policy::default() };
    bar.set_length(tasks);
    for first in (0..tasks).step_by(BATCH as usize) {
        let batch =
            (first..tasks.min(first + BATCH)).map(|n| Ok(NewTask::new(DEAD, &n)?.no_key().policy(policy.clone())));
        store.insert(batch.collect::<redrive::Result<Vec<_>>>()?, store.now().await?).await?;
        bar.inc(BATCH);
    }
    Ok(())
}

fn target(tasks: u64) -> Target {
    Target { up: Arc::default(), calls: Arc::default(), done: Arc::default(), goal: Goal::of(tasks) }
}

async fn engine(store: &Store, target: &Target, healthy: &Arc<Goal>) -> anyhow::Result<Engine> {
    let mut gate = GateConfig::default();
    (gate.breaker.open_wait, gate.breaker.open_jitter) = (Backoff::fixed(OPEN_FOR), Jitter::None);
    let (target, healthy) = (target.clone(), healthy.clone());
    let dead = move |_: Context, _: u64| std::future::ready(target.call());
    let good = move |_: Context, _: u64| {
        healthy.step();
        std::future::ready(Ok(()))
    };
    let mut config = EngineConfig::default();
    config.concurrency = 4_000;
    let builder = Engine::builder(store.clone()).config(config).discover(false);
    let options = MethodOptions::default().gate(gate);
    Ok(builder.register_with(DEAD, options, dead).register(HEALTHY, good).start().await?)
}

async fn until(store: &Store, state: GateState) -> anyhow::Result<()> {
    while !store.gates().await?.iter().any(|gate| gate.lane == Lane::of(DEAD) && gate.state == state) {
        pause(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn cycles(store: &Store) -> anyhow::Result<u64> {
    let gates = store.gates().await?;
    Ok(gates.iter().find(|gate| gate.lane == Lane::of(DEAD)).map_or(0, |gate| u64::from(gate.opens)))
}

/// A connection of PostgreSQL that has nothing to do tells what it has counted after ten seconds.
async fn rows_while_open(raw: &Raw) -> anyhow::Result<i64> {
    let sql =
        "SELECT (n_tup_ins + n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables WHERE relname = 'retry_task'";
    pause(Duration::from_secs(13)).await;
    let before = raw.one(sql).await?;
    pause(COUNT_FOR).await;
    Ok(raw.one(sql).await? - before)
}

#[expect(clippy::disallowed_methods, reason = "it lets time go by")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
