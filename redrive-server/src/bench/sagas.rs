//! Sagas of three steps, each a durable task, each outcome in the journal before the next step begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redrive::saga::{Saga, SagaState, Step, StepCx, StepError, UndoKind};
use redrive::{Engine, EngineConfig, Event, Store};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::ours::start;

/// What its sagas are called, and their ids begin with.
pub(super) const NAME: &str = "bench.order";
/// Callers that start one after the other.
const CALLERS: u64 = 512;

struct Reserve;
struct Charge;
struct Ship;

macro_rules! step {
    ($step:ty, $name:literal) => {
        impl Step for $step {
            const NAME: &'static str = $name;
            type Input = u64;
            type Output = u64;

            async fn run(&self, _: &StepCx, order: &u64) -> Result<u64, StepError> {
                Ok(order + 1)
            }

            async fn undo(&self, _: &StepCx, _: &u64, _: Option<u64>) -> Result<(), StepError> {
                Ok(())
            }

            fn undo_kind(&self) -> UndoKind {
                UndoKind::Compensate
            }
        }
    };
}
step!(Reserve, "reserve");
step!(Charge, "charge");
step!(Ship, "ship");

/// Starts so many, and waits until the last has ended.
pub(super) async fn run(store: &Store, sagas: u64) -> anyhow::Result<Duration> {
    let mut config = EngineConfig::default();
    config.name = "bench".into();
    config.concurrency = 4_000;
    let saga = Saga::new(NAME).step(Reserve).then(Charge).then(Ship);
    let engine = Engine::builder(store.clone()).config(config).saga(saga).start().await?;
    let events = engine.events();
    let (began, next) = (start(), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> =
        (0..CALLERS.min(sagas)).map(|_| tokio::spawn(submit(engine.clone(), next.clone(), sagas))).collect();
    for caller in callers {
        caller.await??;
    }
    all_ended(&engine, events, sagas).await?;
    let took = began.elapsed();
    engine.stop().await;
    Ok(took)
}

/// Waits until that is in the journal of all of them.
async fn all_ended(engine: &Engine, mut events: Receiver<Event>, sagas: u64) -> anyhow::Result<()> {
    let mut ended = 0;
    while ended < sagas {
        match events.recv().await {
            Ok(Event::Saga { state: SagaState::Succeeded, .. }) => ended += 1,
            Ok(Event::Saga { id, state, .. }) if state.is_final() => anyhow::bail!("{id} is {state}"),
            Ok(_) => {}
            // Too many were told at once to be heard: what is left is counted, by an index. All have been started by now.
            Err(RecvError::Lagged(_)) => {
                let left: u64 = engine.store().count_sagas().await?.iter().map(|(_, n)| n).sum();
                ended = ended.max(sagas.saturating_sub(left));
            }
            Err(RecvError::Closed) => anyhow::bail!("the engine has stopped"),
        }
    }
    Ok(())
}

async fn submit(engine: Engine, next: Arc<AtomicU64>, sagas: u64) -> redrive::Result<()> {
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= sagas {
            return Ok(());
        }
        engine.sagas().start(NAME, &format!("{NAME}-{n}"), &n).await?;
    }
}
