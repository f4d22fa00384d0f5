//! Planned switchovers of a MariaDB primary under a load of sagas, for `scripts/test-clusters`. The old primary becomes read-only and
//! keeps its connections, and reads on them would be out of date. No step may be dropped: each saga that was started must end.
//!
//! ```sh
//! scripts/cluster-db start /tmp/pair mariadb
//! cargo run --example switchover -- /tmp/pair 10
//! scripts/cluster-db stop /tmp/pair
//! ```

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use redrive::saga::{Saga, SagaState, Step, StepCx, StepError, UndoKind};
use redrive::{Engine, Store, StoreOptions};

/// Sagas that are started at the same time, and how often.
const AT_ONCE: u64 = 5;
const EVERY: Duration = Duration::from_millis(100);
/// The time between two switchovers.
const BETWEEN: Duration = Duration::from_secs(5);
/// The time in which all sagas end after the last switchover.
const PATIENCE: Duration = Duration::from_secs(60);

struct Reserve;
struct Pay;

impl Step for Reserve {
    const NAME: &'static str = "reserve";
    type Input = u64;
    type Output = u64;

    async fn run(&self, _: &StepCx, order: &u64) -> Result<u64, StepError> {
        Ok(*order)
    }

    async fn undo(&self, _: &StepCx, _: &u64, _: Option<u64>) -> Result<(), StepError> {
        Ok(())
    }

    fn undo_kind(&self) -> UndoKind {
        UndoKind::Compensate
    }
}

impl Step for Pay {
    const NAME: &'static str = "pay";
    type Input = u64;
    type Output = u64;

    async fn run(&self, _: &StepCx, order: &u64) -> Result<u64, StepError> {
        Ok(*order)
    }

    async fn undo(&self, _: &StepCx, _: &u64, _: Option<u64>) -> Result<(), StepError> {
        Ok(())
    }

    fn undo_kind(&self) -> UndoKind {
        UndoKind::Compensate
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let cluster = arguments.next().context("give the directory of a cluster")?;
    let switchovers: u32 = arguments.next().context("give the number of switchovers")?.parse()?;
    let ports = script(&cluster, "ports")?;
    let mut ports: Vec<&str> = ports.lines().collect();
    ensure!(ports.len() == 2, "this needs a primary and a replica");
    let mut nodes = Vec::new();
    for _ in 0..2 {
        nodes.push(node(&ports).await?);
        ports.reverse(); // each node has its own order
    }
    let (stop, started) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
    let starting = tokio::spawn(start_sagas(nodes[0].clone(), stop.clone(), started.clone()));
    for n in 1..=switchovers {
        pause(BETWEEN).await;
        let (directory, begun) = (cluster.clone(), now());
        tokio::task::spawn_blocking(move || script(&directory, "switch")).await??;
        let sagas = started.load(Ordering::Acquire);
        println!("switchover {n} took {:.2} s; {sagas} sagas have been started", begun.elapsed().as_secs_f64());
    }
    pause(BETWEEN).await;
    stop.store(true, Ordering::Release);
    starting.await?;
    let started = started.load(Ordering::Acquire);
    let ends = ends(&nodes[1], started).await?;
    for node in &nodes {
        node.stop().await;
    }
    println!("sagas started {started}, by their state: {ends:?}");
    ensure!(ends.get("succeeded") == Some(&started), "not all sagas have succeeded: steps were dropped");
    Ok(())
}

/// Runs `scripts/cluster-db` and returns what it prints.
fn script(cluster: &str, command: &str) -> anyhow::Result<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/cluster-db");
    let out = Command::new(script).args([command, cluster]).output().with_context(|| format!("running {script}"))?;
    ensure!(out.status.success(), "{script} {command}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8(out.stdout)?)
}

async fn node(ports: &[&str]) -> anyhow::Result<Engine> {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut options = StoreOptions::default();
    options.retry_for = Duration::from_secs(30);
    let store = Store::open_with(&format!("mysql://app@{}/redrive", hosts.join(",")), options).await?;
    let order = Saga::new("order").step(Reserve).step(Pay).after(Reserve);
    Ok(Engine::builder(store).saga(order).start().await?)
}

/// Starts sagas until it is told to stop. A start that fails is repeated under the same id.
async fn start_sagas(engine: Engine, stop: Arc<AtomicBool>, started: Arc<AtomicU64>) {
    let mut next = 0;
    while !stop.load(Ordering::Acquire) {
        let ids: Vec<u64> = (next..next + AT_ONCE).collect();
        next += AT_ONCE;
        for id in ids {
            let name = format!("order-{id}");
            while let Err(e) = engine.sagas().start("order", &name, &id).await {
                eprintln!("{name} could not be started yet: {e}");
                pause(EVERY).await;
            }
            started.fetch_add(1, Ordering::AcqRel);
        }
        pause(EVERY).await;
    }
}

/// Counts sagas by state, when all have ended or there is no more patience.
async fn ends(engine: &Engine, started: u64) -> anyhow::Result<BTreeMap<&'static str, u64>> {
    let begun = now();
    loop {
        let mut states: BTreeMap<&'static str, u64> = BTreeMap::new();
        for id in 0..started {
            let saga = engine.store().saga(&format!("order-{id}")).await?;
            let state = saga.map_or("missing", |saga| saga.summary.state.as_str());
            *states.entry(state).or_default() += 1;
        }
        let is_over = !states.contains_key(SagaState::Running.as_str());
        if is_over || begun.elapsed() > PATIENCE {
            return Ok(states);
        }
        pause(Duration::from_secs(1)).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "it lets time go by")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn now() -> Instant {
    Instant::now()
}
