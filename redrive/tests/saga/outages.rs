//! Outages that are longer than a lease: the node loses its right to work and gives its tasks back while the outcome of a step is
//! still being written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redrive::saga::StepDef;
use redrive::saga::{Op, Ran, SagaState, StepCx, StepError, StepRunner};
use redrive::store::Faults;
use redrive::{Engine, EngineConfig, MethodOptions, Policy, Store};
use serde_json::json;

use crate::harness::{Db, Kind, Raw, options, stores};
use crate::script::{Say, World, journal, quick, saga, settled, step};

stores!(
    a_step_that_runs_again_after_an_outage_leaves_no_effect_behind,
    a_step_that_is_cut_off_while_its_outcome_waits_leaves_no_effect_behind,
);

const LEASE: Duration = Duration::from_secs(2);
/// Longer than a lease, shorter than `retry_for`. Each outage lasts a little longer than the one before it: what is tried again first
/// when the database is back depends on the pauses between tries, which are of half a second.
const OUTAGE: Duration = Duration::from_secs(4);
const LONGER: Duration = Duration::from_millis(70);
const AT_ONCE: usize = 4;

/// A hotel that is full at the first call, and has a room at the second. The database goes away during the first.
#[derive(Clone, Default)]
struct Hotel {
    faults: Faults,
    calls: Arc<AtomicU32>,
    is_booked: Arc<AtomicBool>,
}

impl StepRunner for Hotel {
    fn run<'a>(&'a self, cx: &'a StepCx) -> Ran<'a> {
        Box::pin(async move {
            if cx.op() == Op::Undo {
                self.is_booked.store(false, Ordering::SeqCst);
                return Ok(json!("cancelled"));
            }
            if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
                self.faults.set_down(true);
                return Err(StepError::refused("full"));
            }
            self.is_booked.store(true, Ordering::SeqCst);
            Ok(json!("booked"))
        })
    }
}

/// The node of the outage: nobody else is there to declare it dead.
async fn lonely_engine(store: Store, hotel: Hotel) -> Engine {
    let mut config = EngineConfig::default();
    config.lease = LEASE;
    config.margin = LEASE / 4;
    config.beat_interval = LEASE / 20;
    config.scan_interval = LEASE / 20;
    Engine::builder(store).config(config).saga_runner("go", MethodOptions::default(), hotel).start().await.unwrap()
}

/// One outage. Returns what is wrong afterwards, if anything is.
async fn outage(db: Db, n: usize) -> Option<String> {
    let id = format!("trip-{n}");
    let hotel = Hotel::default();
    let mut options = options();
    options.faults = Some(hotel.faults.clone());
    options.retry_for = Duration::from_secs(60);
    let store = Store::open_with(&db.url, options).await.unwrap();
    let engine = lonely_engine(store, hotel.clone()).await;
    engine.sagas().start_with(saga([step("hotel", &[])]), &id, json!(1)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), async {
        while hotel.calls.load(Ordering::SeqCst) == 0 {
            crate::harness::moment().await;
        }
    })
    .await
    .expect("the step is called");
    // The outage itself: there is nothing to wait for meanwhile.
    _ = tokio::time::timeout(OUTAGE + LONGER * (n % 8) as u32, std::future::pending::<()>()).await;
    hotel.faults.set_down(false);
    let state = settled(&engine, &id).await;
    let journal = journal(&engine, &id).await;
    engine.stop().await; // what still runs has ended by now
    let is_booked = hotel.is_booked.load(Ordering::SeqCst);
    let is_right = is_booked == (state == SagaState::Succeeded);
    (!is_right).then(|| format!("{id}: {state}, booked: {is_booked}, {journal:?}"))
}

/// The number of outages: `REDRIVE_OUTAGES`, or few.
fn outages() -> usize {
    std::env::var("REDRIVE_OUTAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(AT_ONCE)
}

async fn a_step_that_runs_again_after_an_outage_leaves_no_effect_behind(db: Db) {
    let (all, kind): (usize, Kind) = (outages(), db.kind);
    let mut wrong = Vec::new();
    for first in (0..all).step_by(AT_ONCE) {
        let mut runs = tokio::task::JoinSet::new();
        for n in first..all.min(first + AT_ONCE) {
            let db = Db::fresh(kind).await;
            runs.spawn(outage(db, n));
        }
        wrong.extend(runs.join_all().await.into_iter().flatten());
    }
    println!("{kind:?}: {all} outages, {} effects left behind", wrong.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The longest time for which a second attempt is waited for.
const SECOND: Duration = Duration::from_secs(5);

async fn a_step_that_is_cut_off_while_its_outcome_waits_leaves_no_effect_behind(db: Db) {
    if db.kind == Kind::Sqlite {
        return; // whoever writes there holds the whole file
    }
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let policy = Policy { timeout: Some(Duration::from_secs(2)), max_attempts: Some(100), ..quick() };
    world.will("hotel", [Say::HoldAndRefuse]);
    let hotel = StepDef { policy: Some(policy), ..step("hotel", &[]) };
    engine.sagas().start_with(saga([hotel]), "t", json!(1)).await.unwrap();
    world.until_seen("hotel", 1).await;
    let mut raw = Raw::connect(&db).await;
    raw.begin().await;
    raw.sql("UPDATE redrive_saga SET version = version + 1 WHERE id = 't'").await.unwrap();
    world.let_go();
    // A second attempt may begin only when the journal says so, and the journal is held.
    let second = tokio::time::timeout(SECOND, world.until_seen("hotel", 2)).await;
    raw.commit().await;
    let state = settled(&engine, "t").await;
    engine.stop().await;
    let is_booked = world.seen() == ["hotel", "hotel"];
    assert_eq!(is_booked, state == SagaState::Succeeded, "{:?}", world.seen());
    assert!(second.is_err(), "it ran before it was recorded");
}
