//! What a breaker tells: events, logs, metrics, a picture for people.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use redrive::resilience::{BreakerConfig, State, Trip};

use super::*;

#[test]
fn who_takes_events_too_slowly_misses_the_oldest_and_knows_how_many() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)).probes(1, 1).event_capacity(4));
    let mut events = breaker.events();
    for _ in 0..10 {
        fail(&breaker, 1);
        clock.advance(secs(300));
        succeed(&breaker, 1);
    }
    let kept: Vec<_> = std::iter::from_fn(|| events.try_next()).map(|e| e.generation).collect();
    assert_eq!((kept, events.missed()), (vec![27, 28, 29, 30], 26));
}

#[tokio::test]
async fn events_can_be_waited_for_and_end_with_the_breaker() {
    let (breaker, _) = breaker(|b| b.trip(Trip::Consecutive(1)));
    let mut events = breaker.events();
    fail(&breaker, 1);
    assert_eq!(events.next().await.unwrap().to, State::Open);
    drop(breaker);
    assert!(events.next().await.is_none());
}

/// A log line asks the breaker about itself: under its lock that would wait for ever.
#[test]
fn nothing_is_told_under_a_lock() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)).probes(1, 1));
    let asked = Arc::new(AtomicU64::new(0));
    let (inside, count) = (breaker.clone(), asked.clone());
    let writer = move || {
        inside.snapshot();
        count.fetch_add(1, Ordering::SeqCst);
        std::io::sink()
    };
    let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
    tracing::subscriber::with_default(subscriber, || {
        fail(&breaker, 1);
        clock.advance(secs(5));
        succeed(&breaker, 1);
    });
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

/// Counters by name and what distinguishes them; nothing else.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<HashMap<String, Arc<AtomicU64>>>>);

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels = key.labels().map(|label| format!(" {}", label.value())).collect::<String>();
        let mut counters = self.0.lock().unwrap();
        Counter::from_arc(counters.entry(format!("{}{labels}", key.name())).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn calls_and_changes_are_counted() {
    let counted = Counted::default();
    metrics::with_local_recorder(&counted, || {
        let (breaker, _) = breaker(|b| b.trip(Trip::Consecutive(2)));
        let late = acquire(&breaker);
        succeed(&breaker, 3);
        acquire(&breaker).ignore();
        fail(&breaker, 2);
        (0..4).for_each(|_| _ = rejected(&breaker));
        late.success();
    });
    let counters = counted.0.lock().unwrap();
    let of = |name: &str| counters[&format!("redrive_breaker_{name}")].load(Ordering::SeqCst);
    let calls = ["success", "failure", "ignore", "late"].map(|outcome| of(&format!("calls target {outcome}")));
    assert_eq!(calls, [4, 2, 1, 1]);
    assert_eq!((of("rejected target"), of("changes target open")), (4, 1));
}

#[test]
fn a_picture_for_people_and_for_programs() {
    let (breaker, _) = breaker(|b| b.config(BreakerConfig::default()).open_wait(Backoff::fixed(secs(5)), Jitter::None));
    succeed(&breaker, 2);
    fail(&breaker, 5);
    _ = rejected(&breaker);
    let seen = breaker.snapshot();
    assert_eq!(
        seen.to_string(),
        "target: open since 2027-01-15T08:00:00Z until 2027-01-15T08:00:05Z, 1 in a row; 1 rejected; \
         5 of 7 calls (at least 50 % failed within 10s); 5 failures (5 failures in a row)"
    );
    let json = serde_json::to_value(&seen).unwrap();
    assert_eq!(json["state"], "open");
    assert_eq!(json["rules"][1]["trip"]["consecutive"], 5);
    assert_eq!(rejected(&breaker).to_string(), "the circuit of target is open until 2027-01-15T08:00:05Z");
}
