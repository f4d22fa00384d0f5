//! The engine's counters, as a recorder sees them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use redrive::{Backoff, Context, Engine, Jitter, NewTask, Policy, Store, Verdict};

/// Counters by name and method; nothing else.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<Counters>>);

type Counters = HashMap<(String, String), Arc<AtomicU64>>;

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let method = key.labels().find(|l| l.key() == "method").map(|l| l.value().to_owned()).unwrap_or_default();
        Counter::from_arc(self.0.lock().unwrap().entry((key.name().to_owned(), method)).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl Counted {
    fn of(&self, name: &str) -> u64 {
        let counted = self.0.lock().unwrap();
        counted.get(&(format!("redrive_{name}"), "m".to_owned())).map_or(0, |n| n.load(Ordering::SeqCst))
    }
}

#[tokio::test]
async fn every_transition_is_counted_under_its_word() {
    let counted = Counted::default();
    assert!(metrics::set_global_recorder(counted.clone()).is_ok());
    let handler = async |cx: Context, n: u64| match (n, cx.attempt()) {
        (1, 1) => Err(Verdict::report(&"not yet")),
        (2, _) => Err(Verdict::fatal("never")),
        (3, _) if cx.task().unwrap().postponements == 0 => Err(Verdict::Snooze(Duration::from_millis(1))),
        (4, _) => Err(Verdict::Cancel),
        _ => Ok(()),
    };
    let store = Store::open("sqlite::memory:").await.unwrap();
    let engine = Engine::builder(store).register("m", handler).start().await.unwrap();
    let quick = Policy { backoff: Backoff::fixed(Duration::from_millis(1)), jitter: Jitter::None, ..Policy::default() };
    for n in 0..5u64 {
        engine.enqueue(NewTask::new("m", &n).unwrap().policy(quick.clone())).await.unwrap();
    }
    while ["done", "dead", "cancelled"].map(|name| counted.of(name)).iter().sum::<u64>() < 5 {
        tokio::task::yield_now().await;
    }
    engine.stop().await;
    let words = ["enqueued", "started", "done", "failed", "postponed", "cancelled", "dead", "rescued", "lost"];
    assert_eq!(words.map(|word| counted.of(word)), [5, 7, 3, 1, 1, 1, 1, 0, 0]);
    assert_eq!(counted.of("claimed"), 2, "the others were handed over");
}
