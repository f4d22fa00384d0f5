//! Two services with different leases on one database, and the slow one is cut off from it.
//!
//! Leases are 10 and 60 units of time. A unit is `REDRIVE_TEST_LEASE_UNIT_MS` milliseconds (default 100). The number of
//! cuts, which go on at the same time on databases of their own, is `REDRIVE_TEST_LEASE_CUTS` (default 1). The full run:
//!
//! ```sh
//! REDRIVE_TEST_LEASE_UNIT_MS=1000 REDRIVE_TEST_LEASE_CUTS=20 cargo test -p redrive --features axum,seeded-bugs \
//!     --test engine leases::postgres::a_cut_that_is_shorter -- --nocapture
//! REDRIVE_TEST_LEASE_UNIT_MS=1000 REDRIVE_TEST_LEASE_CUTS=5 cargo test -p redrive --features axum,seeded-bugs \
//!     --test engine leases::postgres::a_cut_that_is_longer -- --nocapture
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::store::Faults;
use redrive::{Clock, Context, Engine, EngineConfig, Store, Timestamp, Verdict};
use tokio::sync::watch;

use crate::harness::{Db, Kind, moment, new, options};

/// Units of time.
const SHORT: u32 = 10;
const LONG: u32 = 60;
/// Tasks that run on the slow service when it is cut off.
const TASKS: u64 = 4;

/// Stamps tests for each database; every cut has a database of its own.
macro_rules! stamp {
    ($($module:ident: $kind:ident),*) => { $(
        mod $module {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_cut_that_is_shorter_than_the_longer_lease_moves_nothing() {
                super::in_parallel(crate::harness::Kind::$kind, super::cut_off_shortly).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_cut_that_is_longer_moves_the_tasks_once_they_have_stopped() {
                super::in_parallel(crate::harness::Kind::$kind, super::cut_off_for_long).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_node_that_beats_more_slowly_than_the_others_lease_lives() {
                super::beats_slowly(super::Db::fresh(crate::harness::Kind::$kind).await).await;
            }
        }
    )* };
}
stamp!(sqlite: Sqlite, postgres: Postgres, mysql: MySql);

fn from_environment(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

fn units(n: u32) -> Duration {
    Duration::from_millis(from_environment("REDRIVE_TEST_LEASE_UNIT_MS", 100).into()) * n
}

async fn in_parallel<F: Future<Output = ()> + Send + 'static>(kind: Kind, cut: fn(u32, Db) -> F) {
    let mut all = tokio::task::JoinSet::new();
    for n in 0..from_environment("REDRIVE_TEST_LEASE_CUTS", 1) {
        all.spawn(cut(n, Db::fresh(kind).await));
    }
    while let Some(result) = all.join_next().await {
        result.unwrap();
    }
}

/// One run of a task.
#[derive(Clone, Copy, Debug)]
struct Run {
    task: u64,
    service: &'static str,
    from: Timestamp,
    /// None while it goes on.
    to: Option<Timestamp>,
}

/// All runs on both services. They are in one process, so their order is certain.
#[derive(Clone)]
struct Runs {
    clock: Clock,
    all: Arc<Mutex<Vec<Run>>>,
}

impl Runs {
    fn begin(&self, task: u64, service: &'static str) -> Ending {
        let mut all = self.all.lock().unwrap();
        all.push(Run { task, service, from: self.clock.now(), to: None });
        Ending { runs: self.clone(), run: all.len() - 1 }
    }

    fn to_now(&self) -> Vec<Run> {
        self.all.lock().unwrap().clone()
    }

    fn on(&self, service: &str) -> HashMap<u64, Run> {
        self.to_now().into_iter().filter(|run| run.service == service).map(|run| (run.task, run)).collect()
    }

    async fn until_all_on(&self, service: &str, limit: u32) {
        let wait = async {
            while (self.on(service).len() as u64) < TASKS {
                moment().await;
            }
        };
        let limit = units(limit).max(Duration::from_secs(60));
        let in_time = tokio::time::timeout(limit, wait).await;
        in_time.unwrap_or_else(|_| panic!("not all tasks run on the {service} service: {:?}", self.to_now()));
    }

    /// Pairs of runs of one task that went on at the same time.
    fn overlaps(&self) -> Vec<(Run, Run)> {
        let all = self.to_now();
        let mut overlaps = Vec::new();
        for (i, first) in all.iter().enumerate() {
            for second in all.iter().skip(i + 1).filter(|second| second.task == first.task) {
                if first.to.is_none_or(|end| end > second.from) {
                    overlaps.push((*first, *second));
                }
            }
        }
        overlaps
    }
}

/// Notes the end of a run, also if its handler is dropped.
struct Ending {
    runs: Runs,
    run: usize,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.runs.all.lock().unwrap()[self.run].to = Some(self.runs.clock.now());
    }
}

fn config(name: &str, lease: u32, beat: u32) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.name = name.into();
    config.scan_interval = units(1);
    config.sweep_interval = units(2);
    config.lease = units(lease);
    config.margin = units(lease) / 5;
    config.beat_interval = units(beat);
    config.grace = units(1);
    config
}

async fn start(
    store: Store,
    (name, lease, beat): (&'static str, u32, u32),
    runs: &Runs,
    over: &watch::Receiver<bool>,
) -> Engine {
    let (runs, over) = (runs.clone(), over.clone());
    let handler = move |_: Context, task: u64| {
        let (ending, mut over) = (runs.begin(task, name), over.clone());
        async move {
            _ = over.wait_for(|over| *over).await;
            drop(ending);
            Ok::<(), Verdict>(())
        }
    };
    Engine::builder(store).config(config(name, lease, beat)).register("m", handler).start().await.unwrap()
}

/// A slow service with tasks that run, and a quick one.
struct Pair {
    db: Db,
    slow: Engine,
    quick: Engine,
    faults: Faults,
    runs: Runs,
    over: watch::Sender<bool>,
}

impl Pair {
    async fn start(db: Db) -> Self {
        let faults = Faults::default();
        let mut with_faults = options();
        with_faults.faults = Some(faults.clone());
        let runs = Runs { clock: Clock::system(), all: Arc::default() };
        let (over, is_over) = watch::channel(false);
        let store = Store::open_with(&db.url, with_faults).await.unwrap();
        let slow = start(store, ("slow", LONG, 2), &runs, &is_over).await;
        for task in 0..TASKS {
            slow.enqueue(new(task)).await.unwrap();
        }
        runs.until_all_on("slow", LONG).await;
        let quick = start(db.another().await, ("quick", SHORT, 2), &runs, &is_over).await;
        Self { db, slow, quick, faults, runs, over }
    }

    async fn end(self) {
        self.over.send(true).unwrap();
        let done = async { while self.db.count("retry_task").await > 0 {} };
        tokio::time::timeout(Duration::from_secs(60), done).await.expect("all tasks end");
        self.slow.stop().await;
        self.quick.stop().await;
    }
}

/// Waits for `time` from `since` on.
async fn until_after(runs: &Runs, since: Timestamp, time: Duration) {
    while runs.clock.now().since(since) < time {
        moment().await;
    }
}

/// The slow service is cut off for longer than the lease of the quick one, which must not take its tasks.
async fn cut_off_shortly(n: u32, db: Db) {
    let pair = Pair::start(db).await;
    let cut = pair.runs.clock.now();
    pair.faults.set_down(true);
    until_after(&pair.runs, cut, units(30)).await;
    pair.faults.set_down(false);
    let (overlaps, moved) = (pair.runs.overlaps(), pair.runs.on("quick"));
    println!("cut {n}, 30 units: {} overlaps, {} of {TASKS} tasks moved", overlaps.len(), moved.len());
    assert!(overlaps.is_empty(), "{overlaps:?}");
    assert!(moved.is_empty(), "{moved:?}");
    let runs = pair.runs.clone();
    pair.end().await;
    assert_eq!(runs.to_now().len() as u64, TASKS, "each task ran once: {:?}", runs.to_now());
}

/// It is cut off for longer than its own lease.
async fn cut_off_for_long(n: u32, db: Db) {
    let pair = Pair::start(db).await;
    let cut = pair.runs.clock.now();
    pair.faults.set_down(true);
    pair.runs.until_all_on("quick", 90).await;
    let last = pair.runs.on("quick").values().map(|run| run.from.since(cut)).max().unwrap();
    until_after(&pair.runs, cut, units(90)).await;
    pair.faults.set_down(false);
    let overlaps = pair.runs.overlaps();
    println!("cut {n}, 90 units: {} overlaps, all tasks run elsewhere after {last:?}", overlaps.len());
    assert!(overlaps.is_empty(), "{overlaps:?}");
    // What a scaled-down run on a busy machine takes says nothing of the real one.
    assert!(last <= units(75).max(Duration::from_secs(30)), "{last:?}");
    pair.end().await;
}

/// Its beat interval is longer than the lease of the one that watches it.
async fn beats_slowly(db: Db) {
    let runs = Runs { clock: Clock::system(), all: Arc::default() };
    let (over, is_over) = watch::channel(true);
    let slow = start(db.another().await, ("slow", LONG, 2 * SHORT), &runs, &is_over).await;
    let quick = start(db.another().await, ("quick", SHORT, 2), &runs, &is_over).await;
    let since = runs.clock.now();
    until_after(&runs, since, units(3 * SHORT)).await;
    let nodes = db.store.nodes().await.unwrap();
    let leases: HashSet<Duration> = nodes.iter().map(|node| node.registration.lease).collect();
    assert_eq!(leases, HashSet::from([units(LONG), units(SHORT)]));
    assert!(nodes.len() == 2 && nodes.iter().all(|node| !node.dead), "{nodes:?}");
    drop(over);
    slow.stop().await;
    quick.stop().await;
}
