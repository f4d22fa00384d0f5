//! The services of an engine, and what becomes of one that panics.
//!
//! *State.* The loops that run; whether one of them was lost with work in its hands.
//!
//! *Invariants.* While a node beats, all of its services run.
//!
//! *Failure.* A service that panics begins again after a moment: what it needs is in the database and in [`Shared`]. One that panics again
//! and again does not run, whatever it holds. The inserter, the
//! settler, the claimer and the journals of sagas have a batch in their hands, they or a part of them that works beside, and nobody knows what
//! became of it: its tasks are ours in the database, and its slots taken, for good. They go on, too, so that callers are answered and outcomes
//! written, but the node is *broken*: it beats no more and starts nothing, so its right to work lapses, it is declared dead and others do what
//! it held, as if the process had died. It takes no new number. Whoever looks is told ([`Engine::troubles`](super::Engine::troubles)); only
//! another start mends it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::{AbortHandle, JoinSet};

use crate::clock::{Stopwatch, pause};

use super::{Shared, lock};

/// How long after a panic a service begins again.
const AGAIN: Duration = Duration::from_secs(1);

/// So many panics, each within so long of the one before, are again and again.
const MOST_PANICS: u32 = 5;
const STEADY: Duration = Duration::from_secs(60);

/// What is wrong with a node that is broken, for people.
const BROKEN: &str = "a part of this node has panicked with work in its hands, or again and again; the node does no work until it is started again";

/// Whether work is lost with a service that panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hands {
    Empty,
    Full,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Services {
    running: JoinSet<()>,
    broken: bool,
}

impl Services {
    pub(super) fn spawn(&mut self, service: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.running.spawn(service)
    }
}

impl Shared {
    /// Runs a service beside the others.
    pub(super) fn serve<F>(
        self: &Arc<Self>,
        name: &'static str,
        hands: Hands,
        run: impl Fn(Arc<Self>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        lock(&self.services).spawn(self.clone().keep_up_service(name, hands, run));
    }

    /// Work of a service that is done beside it: if it panics, that is lost, and the service goes on.
    pub(super) fn part<W, F>(self: &Arc<Self>, of: &'static str, work: W) -> impl Future<Output = ()> + Send + use<W, F>
    where
        W: FnOnce(Arc<Self>) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let shared = self.clone();
        AssertUnwindSafe(work(self.clone())).catch_unwind().map(move |ended| {
            ended.unwrap_or_else(|panic| shared.note_panic(of, Hands::Full, &*panic));
        })
    }

    /// Runs a service until it ends by itself, or all has ended.
    pub(super) async fn keep_up_service<F: Future<Output = ()>>(
        self: Arc<Self>,
        name: &'static str,
        hands: Hands,
        run: impl Fn(Arc<Self>) -> F,
    ) {
        let mut panics = 0;
        loop {
            let since = Stopwatch::start();
            let ended = AssertUnwindSafe(run(self.clone())).catch_unwind().await;
            let Err(panic) = ended else { return };
            panics = if since.elapsed() < STEADY { panics + 1 } else { 1 };
            self.note_panic(name, if panics < MOST_PANICS { hands } else { Hands::Full }, &*panic);
            tokio::select! {
                () = pause(AGAIN) => {}
                () = self.ended() => break,
            }
        }
        // Once more, for what it does at its end: whoever waits for it is told.
        _ = AssertUnwindSafe(run(self.clone())).catch_unwind().await;
    }

    fn note_panic(&self, service: &str, hands: Hands, panic: &(dyn Any + Send)) {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        if hands == Hands::Empty {
            return tracing::error!(service, panic = said, "a service of this node has panicked; it begins again");
        }
        tracing::error!(
            service,
            panic = said,
            "a service of this node has panicked with work in its hands, or again and again: the node works no more"
        );
        lock(&self.services).broken = true;
        self.gate.store(false, Ordering::Release);
    }

    /// What is wrong with this node, if it works no more until it is started again.
    pub(super) fn broken(&self) -> Option<&'static str> {
        lock(&self.services).broken.then_some(BROKEN)
    }

    /// Waits for all services to end.
    pub(super) async fn end_services(&self) {
        let mut services = std::mem::take(&mut lock(&self.services).running);
        while services.join_next().await.is_some() {}
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tokio::sync::mpsc;

    use super::*;
    use crate::engine::{Engine, EngineConfig};
    use crate::store::{Fault, Faults, StoreOptions};
    use crate::{Context, NewTask, Store, Verdict};

    type Done = mpsc::UnboundedSender<(&'static str, u64)>;

    async fn node(store: &Store, name: &'static str, done: &Done) -> Engine {
        let quick = Duration::from_millis(50);
        let config = EngineConfig {
            scan_interval: quick,
            sweep_interval: quick,
            beat_interval: quick,
            grace: quick,
            lease: Duration::from_millis(1_000),
            margin: Duration::from_millis(300),
            ..EngineConfig::default()
        };
        let done = done.clone();
        let handler = move |cx: Context<'static>, n: u64| {
            let done = done.clone();
            async move {
                _ = done.send((name, n));
                if name == "broken" {
                    cx.cancelled().await; // it is at it until it is stopped
                    std::future::pending::<()>().await;
                }
                Ok::<(), Verdict>(())
            }
        };
        Engine::builder(store.clone()).config(config).register("m", handler).start().await.unwrap()
    }

    /// A service that panics at its first runs.
    fn panics(
        times: u32,
        runs: Arc<AtomicU32>,
    ) -> impl Fn(Arc<Shared>) -> futures_util::future::BoxFuture<'static, ()> {
        move |_| {
            let runs = runs.clone();
            Box::pin(async move { assert!(runs.fetch_add(1, Ordering::AcqRel) >= times, "on purpose") })
        }
    }

    async fn until_broken(engine: &Engine) {
        while engine.troubles().first() != Some(&BROKEN) {
            tokio::task::yield_now().await;
        }
    }

    async fn breaks(engine: &Engine) -> bool {
        tokio::time::timeout(Duration::from_millis(500), until_broken(engine)).await.is_ok()
    }

    /// Seldom another service meets the fault, which only begins again: so it is planned for each task anew.
    async fn node_that_panics(plan: impl Fn(&Faults) + Send + Sync + 'static) -> (Engine, Faults) {
        let faults = Faults::default();
        let options = StoreOptions { faults: Some(faults.clone()), ..StoreOptions::default() };
        let store = Store::open_with("sqlite::memory:", options).await.unwrap();
        let config = EngineConfig { grace: Duration::ZERO, ..EngineConfig::default() };
        let (planned, plan) = (faults.clone(), Arc::new(plan));
        let handler = move |_: Context<'static>, _: u64| {
            plan(&planned);
            async { Ok::<(), Verdict>(()) }
        };
        (Engine::builder(store).config(config).register("m", handler).start().await.unwrap(), faults)
    }

    #[tokio::test]
    async fn a_panic_while_tasks_are_written_breaks_the_node_and_nobody_is_told_that_nothing_was_written() {
        let (engine, faults) = node_that_panics(|_| {}).await;
        let refused = loop {
            faults.next_write(Fault::Panic);
            if let Err(e) = engine.enqueue(NewTask::new("nobody's", &1u64).unwrap()).await {
                break e.to_string();
            }
        };
        assert!(refused.contains("whether anything was written is not known"), "{refused}");
        assert_eq!(engine.troubles().first(), Some(&BROKEN));
        engine.enqueue(NewTask::new("nobody's", &2u64).unwrap()).await.unwrap(); // the others are answered
        engine.stop().await;
        let refused = engine.enqueue(NewTask::new("nobody's", &3u64).unwrap()).await.unwrap_err().to_string();
        assert!(refused.contains("nothing was written"), "{refused}");
    }

    #[tokio::test]
    async fn a_panic_while_outcomes_are_written_breaks_the_node() {
        let (engine, _) = node_that_panics(|faults| faults.next_write(Fault::Panic)).await;
        for n in 0u64..20 {
            engine.enqueue(NewTask::new("m", &n).unwrap()).await.unwrap();
            if breaks(&engine).await {
                return engine.stop().await;
            }
        }
        panic!("it goes on without its outcomes");
    }

    #[tokio::test]
    async fn a_panic_in_a_claim_breaks_the_node() {
        let (engine, faults) = node_that_panics(|_| {}).await;
        for n in 0u64..20 {
            if faults.are_spent() {
                engine.store().insert(vec![NewTask::new("m", &n).unwrap()], engine.now()).await.unwrap();
                faults.next_write(Fault::Panic);
            }
            engine.wake();
            if breaks(&engine).await {
                return engine.stop().await;
            }
        }
        panic!("it goes on without its claims");
    }

    #[tokio::test]
    async fn a_service_that_panics_begins_again() {
        let store = Store::open("sqlite::memory:").await.unwrap();
        let engine = node(&store, "a", &mpsc::unbounded_channel().0).await;
        let runs = Arc::new(AtomicU32::new(0));
        engine.0.clone().keep_up_service("test", Hands::Empty, panics(1, runs.clone())).await;
        assert_eq!((runs.load(Ordering::Acquire), engine.troubles()), (2, vec![]));
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_service_that_panics_again_and_again_breaks_the_node() {
        let store = Store::open("sqlite::memory:").await.unwrap();
        let engine = node(&store, "a", &mpsc::unbounded_channel().0).await;
        let runs = Arc::new(AtomicU32::new(0));
        engine.0.clone().keep_up_service("test", Hands::Empty, panics(MOST_PANICS - 1, runs.clone())).await;
        assert_eq!(engine.troubles(), Vec::<&str>::new());
        engine.0.clone().keep_up_service("test", Hands::Empty, panics(MOST_PANICS, Arc::default())).await;
        assert_eq!(engine.troubles().first(), Some(&BROKEN));
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_node_that_lost_work_with_a_service_works_no_more_and_another_does_what_it_held() {
        let store = Store::open("sqlite::memory:").await.unwrap();
        let (done, mut calls) = mpsc::unbounded_channel();
        let broken = node(&store, "broken", &done).await;
        broken.enqueue(NewTask::new("m", &1u64).unwrap()).await.unwrap();
        assert_eq!(calls.recv().await, Some(("broken", 1)));
        let number = broken.number();
        let runs = Arc::new(AtomicU32::new(0));
        broken.0.serve("test", Hands::Full, panics(1, runs.clone()));
        until_broken(&broken).await;
        broken.enqueue(NewTask::new("m", &2u64).unwrap()).await.unwrap(); // callers are still answered
        let other = node(&store, "other", &done).await;
        let mut others = [calls.recv().await.unwrap(), calls.recv().await.unwrap()];
        others.sort_unstable();
        assert_eq!(others, [("other", 1), ("other", 2)]);
        assert_eq!(broken.number(), number, "it is dead, and has not come back");
        assert!(broken.troubles().len() > 1 && other.troubles().is_empty(), "{:?}", broken.troubles());
        assert_eq!(runs.load(Ordering::Acquire), 2, "what can go on does");
        for engine in [broken, other] {
            engine.stop().await;
        }
        assert!(calls.try_recv().is_err());
    }
}
