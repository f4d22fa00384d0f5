//! How many durable sagas of three steps a second: each step a durable task, each outcome in the journal before the next begins.
//!
//! ```sh
//! cargo run --release --example saga_rate -- postgres://localhost/redrive 20000
//! cargo run --release --example saga_rate -- sqlite:///tmp/rate.db 20000
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redrive::saga::{Saga, SagaState, Step, StepCx, StepError, UndoKind};
use redrive::{Clock, Engine, EngineConfig, Event, Store};

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

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "sqlite://saga_rate.db".into());
    let wanted: usize = arguments.next().map_or(Ok(2_000), |n| n.parse())?;
    let callers: usize = arguments.next().map_or(Ok(512), |n| n.parse())?;
    let mut config = EngineConfig::default();
    config.concurrency = 4 * callers;
    let order = Saga::new("order").step(Reserve).then(Charge).then(Ship);
    let engine = Engine::builder(Store::open(&url).await?).config(config).saga(order).start().await?;
    let clock = Clock::system();
    let (run, began) = (clock.now().as_millis(), clock.now());
    let started = Arc::new(AtomicUsize::new(0));
    let mut events = engine.events();
    let starters: Vec<_> = (0..callers)
        .map(|_| {
            let (engine, started) = (engine.clone(), started.clone());
            tokio::spawn(async move {
                loop {
                    let n = started.fetch_add(1, Ordering::Relaxed);
                    if n >= wanted {
                        return anyhow::Ok(());
                    }
                    let id = format!("order-{run}-{n}");
                    engine.sagas().start("order", &id, &n).await?;
                }
            })
        })
        .collect();
    let mut ended = 0;
    while ended < wanted {
        match events.recv().await {
            Ok(Event::Saga { state: SagaState::Succeeded, .. }) => ended += 1,
            Ok(Event::Saga { id, state, .. }) if state.is_final() => anyhow::bail!("{id} is {state}"),
            Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {
                let left = engine.store().count_sagas().await?;
                let left: u64 = left.iter().map(|(_, n)| n).sum();
                ended = started.load(Ordering::Relaxed).min(wanted).saturating_sub(usize::try_from(left)?);
            }
            _ => {}
        }
    }
    let took = clock.now().since(began);
    for starter in starters {
        starter.await??;
    }
    println!("{wanted} sagas of three steps in {took:?}: {:.0} a second", wanted as f64 / took.as_secs_f64());
    engine.stop().await;
    Ok(())
}
