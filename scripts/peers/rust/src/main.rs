//! The Rust peers, measured by `scripts/bench-peers`: the scenarios of `../bench.mjs`, in Rust.
//!
//! `redrive-bench-peers PEER SCENARIO TASKS`, with the address of a fresh, empty database in `URL`, prints one JSON object.
//! What is measured, and from when to when, is written here once; a peer says only how it does each step.

mod apalis_postgres;
mod graphile_worker;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::sync::Notify;

const CALLERS: u64 = 64;
const LATENCY_TASKS: u64 = 500;
const LATENCY_PACE: Duration = Duration::from_millis(20);
/// Tasks before the measured ones, so that all connections are open.
const WARM_UP: u64 = CALLERS * 10;

/// Which settings of the worker suit.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    Drain,
    Latency,
}

trait Peer: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    /// As Cargo.toml pins it.
    const VERSION: &'static str;
    /// What was chosen, for the report; the scenario `settings` prints it.
    const SETTINGS: &'static str;

    /// Writes task `n` down, with a unique key; ready when it is durable.
    fn add(&self, n: u64) -> impl Future<Output = Result<()>> + Send;
    /// Writes tasks down by the peer's own bulk call.
    fn add_many(&self, tasks: u64, keyed: bool) -> impl Future<Output = Result<()>> + Send;
    /// Starts the worker; it calls [`ran`] once a task.
    fn work(&self, load: Load) -> impl Future<Output = Result<()>> + Send;
    /// Finds a task that waits or runs.
    fn find_unfinished(&self) -> &'static str;
}

/// When each task ran, and how many did. The handlers of both peers are plain functions, so this is a global.
struct Record {
    clock: Instant,
    times: Vec<AtomicU64>,
    done: AtomicU64,
    all: u64,
    reached: Notify,
}

static RECORD: OnceLock<Record> = OnceLock::new();

impl Record {
    fn of(all: u64) -> &'static Self {
        let times = (0..all).map(|_| AtomicU64::new(0)).collect();
        let reached = Notify::new();
        RECORD.get_or_init(|| Self { clock: Instant::now(), times, done: AtomicU64::new(0), all, reached })
    }

    fn micros(&self) -> u64 {
        self.clock.elapsed().as_micros() as u64
    }

    fn time(&self, n: u64) -> u64 {
        self.times[n as usize].load(Ordering::Relaxed)
    }
}

/// The handlers' only work.
fn ran(n: u64) {
    let record = RECORD.get().expect("set before a worker starts");
    record.times[n as usize].store(record.micros(), Ordering::Relaxed);
    if record.done.fetch_add(1, Ordering::AcqRel) + 1 == record.all {
        record.reached.notify_one();
    }
}

fn key(n: u64) -> String {
    format!("bench-{n}")
}

/// The pieces in which `tasks` are written down in bulk.
fn pieces(tasks: u64, size: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    (0..tasks).step_by(size as usize).map(move |first| first..(first + size).min(tasks))
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (peer, scenario, tasks) = match arguments.as_slice() {
        [peer, scenario] if scenario == "settings" => return settings(peer),
        [peer, scenario, tasks] => (peer, scenario, tasks),
        _ => bail!("usage: redrive-bench-peers PEER SCENARIO TASKS"),
    };
    let url = std::env::var("URL").context("the address of a database in URL")?;
    let pool = sqlx::PgPool::connect(&url).await?;
    let tasks = tasks.parse()?;
    match peer.as_str() {
        "graphile_worker" => measure(&graphile_worker::open(&url).await?, &pool, scenario, tasks).await,
        "apalis-postgres" => measure(&apalis_postgres::open(&url).await?, &pool, scenario, tasks).await,
        _ => bail!("the peers are graphile_worker and apalis-postgres"),
    }?;
    std::process::exit(0) // a worker may still run
}

fn settings(peer: &str) -> Result<()> {
    match peer {
        "graphile_worker" => print_settings::<graphile_worker::Graphile>(),
        _ => print_settings::<apalis_postgres::Apalis>(),
    }
    Ok(())
}

fn print_settings<P: Peer>() {
    print::<P>("settings", json!({ "settings": P::SETTINGS }));
}

async fn measure<P: Peer>(peer: &P, pool: &sqlx::PgPool, scenario: &str, tasks: u64) -> Result<()> {
    let figures = match scenario {
        "enqueue" => rate(tasks, enqueue(peer, tasks).await?),
        "bulk" => rate(tasks, bulk(peer, tasks).await?),
        "drain" => rate(tasks, drain(peer, pool, tasks).await?),
        "latency" => latency(peer).await?,
        _ => bail!("the scenarios are enqueue, bulk, drain and latency"),
    };
    print::<P>(scenario, figures);
    Ok(())
}

fn print<P: Peer>(scenario: &str, mut figures: Value) {
    for (name, value) in [("peer", P::NAME), ("version", P::VERSION), ("scenario", scenario)] {
        figures[name] = value.into();
    }
    println!("{figures}");
}

fn rate(tasks: u64, took: Duration) -> Value {
    json!({ "tasks": tasks, "rate": tasks as f64 / took.as_secs_f64() })
}

async fn enqueue<P: Peer>(peer: &P, tasks: u64) -> Result<Duration> {
    add_all(peer, tasks..tasks + WARM_UP).await?;
    let started = Instant::now();
    add_all(peer, 0..tasks).await?;
    Ok(started.elapsed())
}

/// 64 callers, each of which waits for its task to be written before it takes the next.
async fn add_all<P: Peer>(peer: &P, tasks: std::ops::Range<u64>) -> Result<()> {
    let next = Arc::new(AtomicU64::new(tasks.start));
    let callers = (0..CALLERS).map(|_| {
        let (peer, next) = (peer.clone(), next.clone());
        tokio::spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= tasks.end {
                    return Ok(());
                }
                peer.add(n).await?;
            }
        })
    });
    finished(callers.collect()).await?;
    Ok(())
}

async fn bulk<P: Peer>(peer: &P, tasks: u64) -> Result<Duration> {
    let started = Instant::now();
    peer.add_many(tasks, true).await?;
    Ok(started.elapsed())
}

async fn drain<P: Peer>(peer: &P, pool: &sqlx::PgPool, tasks: u64) -> Result<Duration> {
    peer.add_many(tasks, false).await?;
    sqlx::query("VACUUM ANALYZE").execute(pool).await?;
    let record = Record::of(tasks);
    let started = Instant::now();
    peer.work(Load::Drain).await?;
    record.reached.notified().await;
    while sqlx::query(peer.find_unfinished()).fetch_optional(pool).await?.is_some() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(started.elapsed())
}

async fn latency<P: Peer>(peer: &P) -> Result<Value> {
    let record = Record::of(LATENCY_TASKS + WARM_UP);
    peer.work(Load::Latency).await?;
    let add = |n: u64| {
        let peer = peer.clone();
        tokio::spawn(async move {
            let sent = record.micros();
            peer.add(n).await.map(|()| sent)
        })
    };
    add_all(peer, LATENCY_TASKS..LATENCY_TASKS + WARM_UP).await?;
    while record.done.load(Ordering::Acquire) < WARM_UP {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }

    let mut pace = tokio::time::interval(LATENCY_PACE);
    let mut calls = Vec::new();
    for n in 0..LATENCY_TASKS {
        pace.tick().await;
        calls.push(add(n));
    }
    let sent = finished(calls).await?;
    record.reached.notified().await;
    let mut times: Vec<u64> = (0..).zip(&sent).map(|(n, sent)| record.time(n).saturating_sub(*sent)).collect();
    times.sort_unstable();
    let ms = |at: usize| times[at.min(times.len() - 1)] as f64 / 1000.0;
    let at = |share: f64| ms((times.len() as f64 * share) as usize);
    Ok(json!({ "tasks": LATENCY_TASKS, "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": ms(times.len()) }))
}

async fn finished<T>(calls: Vec<tokio::task::JoinHandle<Result<T>>>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for call in calls {
        all.push(call.await??);
    }
    Ok(all)
}
