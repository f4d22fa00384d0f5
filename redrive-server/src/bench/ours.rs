//! Our side of each scenario.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use redrive::{Engine, EngineConfig, NewTask, Store, Timestamp};
use tokio::sync::Notify;

use super::raw::Raw;

/// Counts what was done and tells when all is.
#[derive(Default)]
pub(super) struct Goal {
    done: AtomicU64,
    all: AtomicU64,
    pub(super) reached: Notify,
}

impl Goal {
    pub(super) fn of(all: u64) -> Arc<Self> {
        let goal = Self::default();
        goal.all.store(all, Ordering::Relaxed);
        Arc::new(goal)
    }

    pub(super) fn step(&self) {
        if self.done.fetch_add(1, Ordering::AcqRel) + 1 == self.all.load(Ordering::Relaxed) {
            self.reached.notify_one();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(super) fn start() -> Instant {
    Instant::now()
}

/// Tasks before the first that counts for latency, so that connections are open and statements prepared.
const WARM_UP: u64 = 100;

async fn engine(store: &Store, goal: &Arc<Goal>) -> anyhow::Result<Engine> {
    let goal = goal.clone();
    let handler = move |_cx, _: serde_json::Value| {
        goal.step();
        std::future::ready(Ok(()))
    };
    let mut config = EngineConfig::default();
    config.name = "bench".into();
    config.concurrency = 4_000;
    Ok(Engine::builder(store.clone()).config(config).register("bench.task", handler).start().await?)
}

fn task(n: u64, keyed: bool) -> redrive::Result<NewTask> {
    let task = NewTask::new("bench.task", &n)?;
    Ok(if keyed { task.key(format!("bench-{n}")) } else { task.no_key() })
}

/// An engine that only enqueues: no handler for the tasks, so none of the time goes into running them.
pub(super) async fn enqueuer(store: &Store) -> anyhow::Result<Engine> {
    let nothing = |_cx, _: serde_json::Value| std::future::ready(Ok(()));
    Ok(Engine::builder(store.clone()).register("bench.none", nothing).start().await?)
}

pub(super) async fn enqueue(store: &Store, tasks: u64, callers: u64, keyed: bool) -> anyhow::Result<Duration> {
    let engine = enqueuer(store).await?;
    let next = Arc::new(AtomicU64::new(0));
    let started = start();
    let mut calls: tokio::task::JoinSet<redrive::Result<()>> = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (engine, next) = (engine.clone(), next.clone());
        calls.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= tasks {
                    return Ok(());
                }
                engine.enqueue(task(n, keyed)?).await?;
            }
        });
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    let took = started.elapsed();
    engine.stop().await;
    Ok(took)
}

pub(super) async fn enqueue_bulk(store: &Store, tasks: u64) -> anyhow::Result<Duration> {
    let engine = enqueuer(store).await?;
    let all: redrive::Result<Vec<NewTask>> = (0..tasks).map(|n| task(n, true)).collect();
    let all = all?;
    let started = start();
    engine.enqueue_many(all).await?;
    let took = started.elapsed();
    engine.stop().await;
    Ok(took)
}

/// From the start of the engine until all outcomes are written.
pub(super) async fn drain(store: &Store, raw: &Raw, tasks: u64) -> anyhow::Result<Duration> {
    raw.insert_for_ours(store, tasks).await?;
    let goal = Goal::of(tasks);
    let started = start();
    let engine = engine(store, &goal).await?;
    goal.reached.notified().await;
    written(&engine).await;
    let took = started.elapsed();
    engine.stop().await;
    Ok(took)
}

/// All outcomes are in the database.
pub(super) async fn written(engine: &Engine) {
    while engine.stats().running > 0 {
        tokio::task::yield_now().await;
    }
}

/// Callers that enqueue while the engine runs what they enqueue.
pub(super) async fn cycle(store: &Store, tasks: u64) -> anyhow::Result<Duration> {
    let goal = Goal::of(tasks);
    let engine = engine(store, &goal).await?;
    let started = start();
    let mut calls: tokio::task::JoinSet<redrive::Result<()>> = tokio::task::JoinSet::new();
    let (batch, callers) = (500, 4);
    for caller in 0..callers {
        let engine = engine.clone();
        calls.spawn(async move {
            let mut n = caller * batch;
            while n < tasks {
                let all: redrive::Result<Vec<_>> = (n..(n + batch).min(tasks)).map(|n| task(n, false)).collect();
                engine.enqueue_many(all?).await?;
                n += callers * batch;
            }
            Ok(())
        });
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    goal.reached.notified().await;
    written(&engine).await;
    let took = started.elapsed();
    engine.stop().await;
    Ok(took)
}

/// Times of single tasks, in the order of their params.
fn timing_engine(store: &Store, times: &Arc<Vec<AtomicU64>>, goal: &Arc<Goal>, clock: Instant) -> redrive::Builder {
    let (times, goal) = (times.clone(), goal.clone());
    let handler = move |_cx, n: usize| {
        if let Some(time) = times.get(n) {
            time.store(clock.elapsed().as_micros() as u64, Ordering::Relaxed);
        }
        goal.step();
        std::future::ready(Ok(()))
    };
    Engine::builder(store.clone()).register("bench.task", handler)
}

#[expect(clippy::disallowed_methods, reason = "a benchmark keeps a pace")]
pub(super) async fn latency(store: &Store, tasks: u64, per_second: u64) -> anyhow::Result<Vec<Duration>> {
    let tasks = tasks + WARM_UP;
    let times: Arc<Vec<AtomicU64>> = Arc::new((0..tasks).map(|_| AtomicU64::new(0)).collect());
    let (goal, clock) = (Goal::of(tasks), start());
    let engine = timing_engine(store, &times, &goal, clock).start().await?;
    let mut pace = tokio::time::interval(Duration::from_secs(1) / per_second as u32);
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..tasks {
        pace.tick().await;
        let engine = engine.clone();
        calls.spawn(async move {
            let sent = clock.elapsed();
            engine.enqueue(task(n, true)?).await.map(|_| (n, sent))
        });
    }
    let mut sent = Vec::new();
    while let Some(call) = calls.join_next().await {
        sent.push(call??);
    }
    goal.reached.notified().await;
    engine.stop().await;
    let ran = |n: u64| Duration::from_micros(times.get(n as usize).map_or(0, |t| t.load(Ordering::Relaxed)));
    let measured = sent.into_iter().filter(|(n, _)| *n >= WARM_UP);
    Ok(measured.map(|(n, sent)| ran(n).saturating_sub(sent)).collect())
}

/// How late tasks ran that were to run at moments spread over a time. An early one is an error.
pub(super) async fn precision(store: &Store, tasks: u64, over: Duration) -> anyhow::Result<Vec<Duration>> {
    let times: Arc<Vec<AtomicU64>> = Arc::new((0..tasks).map(|_| AtomicU64::new(0)).collect());
    let (goal, clock) = (Goal::of(tasks), start());
    let engine = timing_engine(store, &times, &goal, clock).start().await?;
    // Before the database is asked for its time: what counts as late may be a little too much, never too little.
    let before = clock.elapsed();
    let now = store.now().await?;
    let first = now + Duration::from_secs(10);
    let at = |n: u64| first + over.mul_f64(n as f64 / tasks as f64);
    let whole = |t: Timestamp| Timestamp::from_millis(t.as_millis());
    let all: redrive::Result<Vec<_>> = (0..tasks).map(|n| Ok(task(n, false)?.at(whole(at(n))))).collect();
    engine.enqueue_many(all?).await?;
    goal.reached.notified().await;
    engine.stop().await;
    let late = |n: u64| {
        let ran = Duration::from_micros(times.get(n as usize).map_or(0, |t| t.load(Ordering::Relaxed)));
        let due = whole(at(n)).since(now);
        // The database's time is in whole milliseconds, and so is ours.
        let early = (before + due).saturating_sub(ran + Duration::from_millis(1));
        anyhow::ensure!(early.is_zero(), "a task ran {early:?} early");
        Ok(ran.saturating_sub(before + due))
    };
    (0..tasks).map(late).collect()
}

/// How many tasks `memory` keeps in the wheel: as many as an engine takes by default.
pub(super) const IN_WHEEL: u64 = 1_000_000;

/// What this process takes (MB) when its engine holds [`IN_WHEEL`] tasks that are due soon.
pub(super) async fn memory(store: &Store, bar: indicatif::ProgressBar) -> anyhow::Result<f64> {
    let engine = engine(store, &Goal::of(u64::MAX)).await?;
    let due = store.now().await? + Duration::from_secs(60);
    for first in (0..IN_WHEEL).step_by(10_000) {
        let spread = |n: u64| due + Duration::from_millis(n % 5_000);
        let batch: redrive::Result<Vec<_>> =
            (first..first + 10_000).map(|n| Ok(task(n, false)?.at(spread(n)))).collect();
        engine.enqueue_many(batch?).await?;
        bar.inc(10_000);
    }
    bar.finish_and_clear();
    let (held, memory) = (engine.stats().wheel as u64, resident()?);
    engine.stop().await;
    anyhow::ensure!(
        held >= IN_WHEEL,
        "only {held} are in the wheel: another node is at work, or a minute is not enough here"
    );
    Ok(memory)
}

/// The resident memory of this process, in MB.
pub(super) fn resident() -> anyhow::Result<f64> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("reading how much memory is in use (Linux only)")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS is missing")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024.0 / 1e6)
}
