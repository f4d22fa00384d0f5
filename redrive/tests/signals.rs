//! The engine's counters, as a recorder sees them, and its log.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use redrive::saga::{Definition, Ran, StepCx, StepDef, StepRunner};
use redrive::testing::Testing;
use redrive::{Backoff, Context, Engine, Jitter, MethodOptions, NewTask, OnExhausted, Policy, Store, Verdict};

/// Counters by name and method or saga; nothing else.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<Counters>>);

type Counters = HashMap<(String, String), Arc<AtomicU64>>;

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let of = key.labels().find(|l| ["method", "saga"].contains(&l.key()));
        let of = of.map(|l| l.value().to_owned()).unwrap_or_default();
        Counter::from_arc(self.0.lock().unwrap().entry((key.name().to_owned(), of)).or_default().clone())
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
        self.under(name, "m")
    }

    fn under(&self, name: &str, label: &str) -> u64 {
        let counted = self.0.lock().unwrap();
        counted.get(&(format!("redrive_{name}"), label.to_owned())).map_or(0, |n| n.load(Ordering::SeqCst))
    }

    fn labels(&self) -> HashSet<String> {
        self.0.lock().unwrap().keys().map(|(_, label)| label.clone()).collect()
    }
}

/// Steps of which nothing is to be done.
struct Nothing;

impl StepRunner for Nothing {
    fn run<'a>(&'a self, _: &'a StepCx) -> Ran<'a> {
        Box::pin(async { Ok(serde_json::Value::Null) })
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
    let builder = Engine::builder(store).register("m", handler);
    let engine = builder.saga_runner("steps", MethodOptions::default(), Nothing).start().await.unwrap();
    let quick = Policy { backoff: Backoff::fixed(Duration::from_millis(1)), jitter: Jitter::None, ..Policy::default() };
    for n in 0..5u64 {
        engine.enqueue(NewTask::new("m", &n).unwrap().policy(quick.clone())).await.unwrap();
    }
    while ["done", "dead", "cancelled"].map(|name| counted.of(name)).iter().sum::<u64>() < 5 {
        tokio::task::yield_now().await;
    }
    // Names that nobody has registered are the caller's, and would be labels for good.
    for n in 0..3 {
        engine.enqueue(NewTask::new(format!("x-{n}"), &n).unwrap()).await.unwrap();
        let step = StepDef { name: "a".into(), method: Some("steps".into()), ..StepDef::default() };
        let order = Definition { name: format!("order-{n}"), steps: vec![step], ..Definition::default() };
        engine.sagas().start_with(order, &n.to_string(), n.into()).await.unwrap();
    }
    while counted.under("saga_ended", "other") < 3 {
        tokio::task::yield_now().await;
    }
    engine.stop().await;
    assert_eq!(counted.under("enqueued", "other"), 3);
    assert!(!counted.labels().iter().any(|label| label.starts_with("x-") || label.starts_with("order-")));
    let words = ["enqueued", "started", "done", "failed", "postponed", "cancelled", "dead", "rescued", "lost"];
    assert_eq!(words.map(|word| counted.of(word)), [5, 7, 3, 1, 1, 1, 1, 0, 0]);
    assert_eq!(counted.of("claimed"), 2, "the others were handed over");
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn source_2_every_final_failure_is_in_the_log_with_what_is_known_of_it() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let handler = async |_: Context, text: String| Err::<(), _>(Verdict::report(&text));
    let world = Testing::with(|builder| builder.register("logged", handler)).await;
    let quick = Policy { backoff: Backoff::fixed(Duration::from_secs(1)), jitter: Jitter::None, ..Policy::default() };
    let once = Policy { max_attempts: Some(1), ..quick.clone() };
    let drop = Policy { on_exhausted: OnExhausted::Drop, ..once.clone() };
    let late = Policy { max_duration: Some(Duration::from_secs(60)), ..quick };
    let task =
        |text: &str, policy: Policy| NewTask::new("logged", text).unwrap().policy(policy).business("order", text);
    world.enqueue(task("letter", once)).await.unwrap();
    world.enqueue(task("dropped", drop)).await.unwrap();
    world.enqueue(task("late", late).delay(Duration::from_secs(120))).await.unwrap();
    world.advance("3m").await;
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for words in [
        ["a task is dead", "business=\"letter\"", "attempts=1", "reason=\"exhausted\"", "error=\"\\\"letter"],
        ["a task is given up", "business=\"dropped\"", "attempts=1", "reason=\"exhausted\"", "error=\"\\\"dropped"],
        ["without another attempt", "business=\"late\"", "attempts=0", "reason=\"expired\"", "method=\"logged\""],
    ] {
        let said = log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
        assert_eq!(said, 1, "{words:?}: {log}");
    }
}
