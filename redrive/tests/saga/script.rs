//! A world of participants that do as they are told, and note what they did.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::saga::{Definition, Event, Op, Ran, SagaState, StepCx, StepDef, StepError, StepRunner};
use redrive::store::DeadFilter;
use redrive::{Backoff, Clock, Engine, EngineConfig, Jitter, MethodOptions, Policy, Store};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::harness::{Db, moment};

/// What a participant answers.
#[derive(Clone, Debug)]
pub enum Say {
    Done(Value),
    /// An error that is tried again.
    Fail,
    Refuse,
    Unknown,
    /// Under way: to be asked for again.
    Ongoing,
    /// No answer, until it is not wanted any more.
    Hang,
    /// It waits for [`World::let_go`], then it is done.
    Hold,
    /// It waits likewise, then it is refused.
    HoldAndRefuse,
}

#[derive(Default)]
struct Inner {
    said: Mutex<HashMap<String, VecDeque<Say>>>,
    seen: Mutex<Vec<String>>,
    keys: Mutex<Vec<String>>,
    inputs: Mutex<Vec<Value>>,
    changed: Notify,
    go: Notify,
}

/// The participants.
#[derive(Clone, Default)]
pub struct World(Arc<Inner>);

impl World {
    /// What a step (`hotel`) or an undo (`hotel/undo`) will answer: these, one after the other, then that it is done.
    pub fn will(&self, what: &str, says: impl IntoIterator<Item = Say>) -> &Self {
        self.0.said.lock().unwrap().insert(what.to_owned(), says.into_iter().collect());
        self
    }

    /// All that was asked for, in its order: `hotel`, `hotel/undo`, `hotel/confirm`.
    pub fn seen(&self) -> Vec<String> {
        self.0.seen.lock().unwrap().clone()
    }

    pub fn keys(&self) -> Vec<String> {
        self.0.keys.lock().unwrap().clone()
    }

    pub fn inputs(&self) -> Vec<Value> {
        self.0.inputs.lock().unwrap().clone()
    }

    /// Waits until this was asked for so many times.
    pub async fn until_seen(&self, what: &str, times: usize) {
        loop {
            let changed = self.0.changed.notified();
            if self.seen().iter().filter(|seen| *seen == what).count() >= times {
                return;
            }
            tokio::time::timeout(Duration::from_secs(120), changed)
                .await
                .unwrap_or_else(|_| panic!("{what} was never asked for, but {:?}", self.seen()));
        }
    }

    pub fn let_go(&self) {
        self.0.go.notify_one();
    }

    pub async fn engine(&self, store: &Store) -> Engine {
        self.engine_of(store, &["go"]).await
    }

    /// An engine that runs steps of these methods.
    pub async fn engine_of(&self, store: &Store, methods: &[&str]) -> Engine {
        self.engine_with(store, methods, MethodOptions::default()).await
    }

    /// The same with limits.
    pub async fn engine_with(&self, store: &Store, methods: &[&str], options: MethodOptions) -> Engine {
        let add =
            |builder: redrive::Builder, method: &&str| builder.saga_runner(*method, options.clone(), self.clone());
        methods.iter().fold(quick_engine(store), add).start().await.unwrap()
    }

    /// An engine that does one thing at a time.
    pub async fn engine_of_one_slot(&self, store: &Store) -> Engine {
        let mut narrow = EngineConfig::default();
        (narrow.scan_interval, narrow.concurrency) = (Duration::from_millis(100), 1);
        let builder = Engine::builder(store.clone()).config(narrow);
        builder.saga_runner("go", MethodOptions::default(), self.clone()).start().await.unwrap()
    }

    /// An engine, and its clock to be moved.
    pub async fn engine_and_clock(&self, store: &Store) -> (Engine, Clock) {
        self.engine_and_clock_with(store, MethodOptions::default()).await
    }

    /// The same with limits.
    pub async fn engine_and_clock_with(&self, store: &Store, options: MethodOptions) -> (Engine, Clock) {
        let clock = Clock::starting_at(store.now().await.unwrap());
        let builder = quick_engine(store).clock(clock.clone());
        let engine = builder.saga_runner("go", options, self.clone()).start().await.unwrap();
        (engine, clock)
    }

    async fn answer(&self, cx: &StepCx) -> Result<Value, StepError> {
        let what =
            if cx.op() == Op::Run { cx.step().to_owned() } else { format!("{}/{}", cx.step(), cx.op().as_str()) };
        self.0.keys.lock().unwrap().push(cx.key());
        self.0.inputs.lock().unwrap().push(cx.input().clone());
        self.0.seen.lock().unwrap().push(what.clone());
        self.0.changed.notify_waiters();
        let say = self.0.said.lock().unwrap().get_mut(&what).and_then(VecDeque::pop_front);
        match say.unwrap_or(Say::Done(json!(what))) {
            Say::Done(value) => Ok(value),
            Say::Fail => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
            Say::Refuse => Err(StepError::refused("no")),
            Say::Unknown => Err(StepError::unknown("who knows")),
            Say::Ongoing => Err(StepError::Ongoing(Duration::from_millis(20))),
            Say::Hang => {
                cx.cancelled().await;
                Err(std::io::Error::from(std::io::ErrorKind::Interrupted).into())
            }
            Say::Hold => {
                self.0.go.notified().await;
                Ok(json!(what))
            }
            Say::HoldAndRefuse => {
                self.0.go.notified().await;
                Err(StepError::refused("no"))
            }
        }
    }
}

impl StepRunner for World {
    fn run<'a>(&'a self, cx: &'a StepCx) -> Ran<'a> {
        Box::pin(self.answer(cx))
    }
}

fn quick_engine(store: &Store) -> redrive::Builder {
    let mut quick = EngineConfig::default();
    quick.scan_interval = Duration::from_millis(100);
    Engine::builder(store.clone()).config(quick)
}

/// Tried a few times, quickly.
pub fn quick() -> Policy {
    Policy {
        max_attempts: Some(3),
        backoff: Backoff::fixed(Duration::from_millis(10)),
        jitter: Jitter::None,
        ..Policy::default()
    }
}

/// A step of the method `go` after these.
pub fn step(name: &str, after: &[&str]) -> StepDef {
    StepDef {
        name: name.into(),
        after: after.iter().map(|&name| name.to_owned()).collect(),
        method: Some("go".into()),
        policy: Some(quick()),
        undo_policy: Some(quick()),
        ..StepDef::default()
    }
}

pub fn saga(steps: impl IntoIterator<Item = StepDef>) -> Definition {
    Definition { name: "trip".into(), steps: steps.into_iter().collect(), ..Definition::default() }
}

/// `hotel`, then `flight`, then `car`.
pub fn trip() -> Definition {
    saga([step("hotel", &[]), step("flight", &["hotel"]), step("car", &["flight"])])
}

/// Starts a saga and waits until it has ended or is stuck.
pub async fn play(engine: &Engine, definition: Definition, id: &str) -> SagaState {
    engine.sagas().start_with(definition, id, json!({ "who": "Ada" })).await.unwrap();
    settled(engine, id).await
}

pub async fn settled(engine: &Engine, id: &str) -> SagaState {
    until(engine, id, |state| state.is_final() || state == SagaState::Stuck).await
}

pub async fn until(engine: &Engine, id: &str, stands: impl Fn(SagaState) -> bool) -> SagaState {
    let sagas = engine.sagas();
    let found = tokio::time::timeout(Duration::from_secs(120), sagas.until(id, stands)).await;
    match found {
        Ok(saga) => saga.unwrap().state,
        Err(_) => panic!("it goes on and on: {:#?}", journal(engine, id).await),
    }
}

pub async fn journal(engine: &Engine, id: &str) -> Vec<Event> {
    let saga = engine.sagas().get(id).await.unwrap().unwrap();
    assert!(saga.journal.iter().zip(1..).all(|(event, n)| event.seq == n), "numbered without gaps");
    saga.journal.into_iter().map(|journaled| journaled.event).collect()
}

/// The dead letters, once there are any.
pub async fn until_letter(db: &Db) -> Vec<redrive::TaskId> {
    for _ in 0..3_000 {
        let letters = db.store.dead(&DeadFilter::default(), 10).await.unwrap();
        if !letters.is_empty() {
            return letters.iter().map(|letter| letter.task.id).collect();
        }
        moment().await;
    }
    panic!("there is no dead letter");
}
