//! A saga of six steps whose process is killed before or after one of the writes of its journal.
//!
//! ```sh
//! cargo run --example saga_killed -- sqlite://trip.db back after 3   # stops there, waiting to be killed
//! cargo run --example saga_killed -- sqlite://trip.db back           # makes good what that one left
//! ```
//!
//! The steps are `a`, then `b` and `c` side by side, then `d`, `e`, `f`. Under `ok` all of them are done; under `back` the last one is refused, so all
//! others are undone; under `stuck` one of the undos is refused as well. Each step is a participant with a table of its own, which asks
//! the barrier in the transaction of its effect. The tests kill this program at every write, on every database.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redrive::barrier::{self, Entered};
use redrive::saga::{Definition, Op, Ran, SagaState, StepCx, StepDef, StepError, StepRunner};
use redrive::store::{Connection, Tx};
use redrive::{Backoff, Engine, EngineConfig, Jitter, MethodOptions, Policy, Store};
use serde_json::{Value, json};
use sqlx::Row as _;

const SAGA: &str = "trip";

/// A participant: its effects are rows.
struct Participant {
    store: Store,
}

/// Runs SQL on whichever database it is; the first column of all rows, as text.
async fn sql(tx: &mut Tx, text: &'static str, values: &[&str]) -> sqlx::Result<Vec<String>> {
    macro_rules! on {
        ($c:expr, $text:expr) => {{
            let query = values
                .iter()
                .fold(sqlx::query(sqlx::AssertSqlSafe($text)), |query, value| query.bind(value.to_string()));
            let rows = query.fetch_all(&mut *$c).await?;
            rows.iter().map(|row| row.try_get(0)).collect()
        }};
    }
    match tx.connection() {
        Connection::Sqlite(c) => on!(c, text.to_owned()),
        Connection::Postgres(c) => on!(c, text.replacen('?', "$1", 1).replacen('?', "$2", 1)),
        Connection::MySql(c) => on!(c, text.to_owned()),
        _ => Err(sqlx::Error::PoolClosed),
    }
}

impl Participant {
    async fn act(&self, cx: &StepCx) -> Result<Value, StepError> {
        let script = cx.input().as_str().unwrap_or_default();
        let refuses = match (cx.op(), cx.step()) {
            (Op::Run, "f") => script != "ok",
            (Op::Undo, "b") => script == "stuck",
            _ => false,
        };
        if refuses {
            return Err(StepError::refused("not today"));
        }
        let mut tx = self.store.begin().await?;
        let done = match barrier::enter(&mut tx, &cx.barrier_key()).await? {
            Entered::Proceed(entry) => {
                let insert = "INSERT INTO effect (step, op, n) SELECT ?, ?, COUNT(*) + 1 FROM effect";
                sql(&mut tx, insert, &[cx.step(), cx.op().as_str()]).await?;
                let done = json!(format!("{} is done", cx.step()));
                entry.keep(&mut tx, &done).await?;
                Ok(done)
            }
            Entered::Duplicate(kept) => Ok(kept.unwrap_or_default()),
            Entered::NullUndo => Ok(Value::Null),
            Entered::Dangling => Err(StepError::refused("too late")),
        };
        tx.commit().await?;
        done
    }
}

impl StepRunner for Participant {
    fn run<'a>(&'a self, cx: &'a StepCx) -> Ran<'a> {
        Box::pin(self.act(cx))
    }
}

fn trip() -> Definition {
    let quick =
        Policy { backoff: Backoff::fixed(Duration::from_millis(50)), jitter: Jitter::None, ..Policy::default() };
    let step = |(name, after): (&str, &[&str])| StepDef {
        name: name.into(),
        after: after.iter().map(|&name| name.to_owned()).collect(),
        method: Some("take-part".into()),
        policy: Some(quick.clone()),
        undo_policy: Some(quick.clone()),
        ..StepDef::default()
    };
    let steps: [(&str, &[&str]); 6] =
        [("a", &[]), ("b", &["a"]), ("c", &["a"]), ("d", &["b", "c"]), ("e", &["d"]), ("f", &["e"])];
    Definition { name: SAGA.into(), steps: steps.into_iter().map(step).collect(), ..Definition::default() }
}

/// An engine that is soon missed if it dies.
fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_secs(1);
    config.sweep_interval = Duration::from_secs(1);
    config.beat_interval = Duration::from_millis(300);
    config.lease = Duration::from_secs(2);
    config.margin = Duration::from_millis(500);
    config
}

/// What the participants have done: `a/run`, `a/undo`, in the order in which they were done.
async fn effects(store: &Store) -> anyhow::Result<Vec<String>> {
    let mut tx = store.begin().await?;
    let all = "SELECT CONCAT(step, CONCAT('/', op)) FROM effect ORDER BY n, step";
    let effects = sql(&mut tx, all, &[]).await?;
    tx.rollback().await?;
    Ok(effects)
}

/// Brings the saga to its end: how it stands, what was done, and in how many writes. `hook` is called before and after each of them.
pub async fn finish(
    url: &str,
    script: &str,
    hook: impl Fn(&'static str, usize) + Send + Sync + 'static,
) -> anyhow::Result<(SagaState, Vec<String>, usize)> {
    let store = Store::open(url).await?;
    let mut tx = store.begin().await?;
    sql(&mut tx, "CREATE TABLE IF NOT EXISTS effect (step VARCHAR(10), op VARCHAR(10), n INT)", &[]).await?;
    tx.commit().await?;
    let writes = Arc::new(AtomicUsize::new(0));
    let count = writes.clone();
    let engine = Engine::builder(store.clone())
        .config(config())
        .saga_runner("take-part", MethodOptions::default(), Participant { store: store.clone() })
        .journal_hook(move |when| {
            let n =
                if when == "before" { count.fetch_add(1, Ordering::SeqCst) + 1 } else { count.load(Ordering::SeqCst) };
            hook(when, n);
        })
        .start()
        .await?;
    engine.sagas().start_with(trip(), "s", json!(script)).await?;
    let saga = engine.sagas().until("s", |state| state.is_final() || state == SagaState::Stuck).await?;
    engine.stop().await;
    Ok((saga.state, effects(&store).await?, writes.load(Ordering::SeqCst)))
}

#[tokio::main]
#[allow(dead_code, reason = "tests include this file")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let url = arguments.first().cloned().unwrap_or_else(|| "sqlite://trip.db".into());
    let script = arguments.get(1).cloned().unwrap_or_else(|| "ok".into());
    let point = arguments.get(2).cloned().zip(arguments.get(3).and_then(|n| n.parse::<usize>().ok()));
    let hook = move |when: &'static str, n: usize| {
        if point.as_ref().is_some_and(|(at, wanted)| at == when && n == *wanted) {
            println!("here: {when} write {n}");
            loop {
                std::thread::park(); // nothing is written any more
            }
        }
    };
    let (state, effects, writes) = finish(&url, &script, hook).await?;
    println!("{state} after {writes} writes: {}", effects.join(" "));
    Ok(())
}
