//! From a handler that fails to the mail, by an engine.

use std::time::Duration;

use redrive::gate::GateConfig;
use redrive::resilience::{BreakerConfig, Trip};
use redrive::saga::{Definition, Ran, SagaState, StepCx, StepDef, StepError, StepRunner, UndoKind};
use redrive::store::Registration;
use redrive::{Backoff, Context, Engine, EngineConfig, Failure, Jitter, Kind, MethodOptions, Notify, Policy, Verdict};

use crate::harness::{Db, moment, new, stores};
use crate::sink::{Sink, header, text};

stores!(
    an_engine_tells_people,
    an_engine_without_channels_leaves_notices_to_others,
    people_are_told_once_that_a_node_died,
    source_4_people_are_told_when_a_gate_opens,
    people_are_told_once_that_a_saga_is_stuck,
    what_happens_on_a_node_without_channels_is_told_by_another,
);

fn builder(db: &Db) -> redrive::Builder {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_millis(100);
    Engine::builder(db.store.clone())
        .config(config)
        .register("m", async |_: Context<'static>, _: u64| Err::<(), _>(Verdict::from(std::fmt::Error)))
}

fn once() -> Policy {
    Policy { max_attempts: Some(1), notify: Some(Notify::Failures(1)), ..Policy::default() }
}

async fn an_engine_tells_people(db: Db) {
    let mut sink = Sink::start().await;
    let engine = builder(&db).notify(sink.config()).start().await.unwrap();
    engine.enqueue(new(1).policy(once())).await.unwrap();
    let mail = sink.next_mail().await;
    assert_eq!(header(&mail, "Subject").as_deref(), Some("[redrive] 1 task keeps failing: m (1)"));
    engine.stop().await;
    assert_eq!((sink.mails().len(), db.count("redrive_notice").await, db.count("retry_dead").await), (1, 0, 1));
}

async fn an_engine_without_channels_leaves_notices_to_others(db: Db) {
    let engine = builder(&db).start().await.unwrap();
    engine.enqueue(new(1).policy(once())).await.unwrap();
    while db.count("retry_dead").await == 0 {
        moment().await;
    }
    engine.stop().await;
    assert_eq!(db.count("redrive_notice").await, 1);
    let mut sink = Sink::start().await;
    let engine = builder(&db).notify(sink.config()).start().await.unwrap();
    sink.next_mail().await;
    engine.stop().await;
    assert_eq!(db.count("redrive_notice").await, 0);
}

async fn people_are_told_once_that_a_node_died(db: Db) {
    let mut sink = Sink::start().await;
    let now = db.store.now().await.unwrap();
    let silent = Registration { name: "till-3".into(), ..Registration::default() };
    let number = db.store.register(&silent, now).await.unwrap();
    let mut config = EngineConfig::default();
    (config.beat_interval, config.lease, config.margin) =
        (Duration::from_millis(100), Duration::from_millis(600), Duration::from_millis(100));
    let engine =
        Engine::builder(db.another().await).config(config.clone()).notify(sink.config()).start().await.unwrap();
    let other = Engine::builder(db.another().await).config(config).notify(sink.config()).start().await.unwrap();
    let mail = sink.next_mail().await;
    let subject = header(&mail, "Subject").unwrap();
    assert!(subject.starts_with(&format!("[redrive] node {number} (till-3) was declared dead")), "{subject}");
    assert!(text(&mail).contains("node.fenced"));
    engine.stop().await;
    other.stop().await;
    assert_eq!((sink.mails().len(), db.count("redrive_notice").await), (1, 0));
}

fn shut_after_three() -> GateConfig {
    let mut gate = GateConfig::default();
    gate.breaker = BreakerConfig {
        trips: vec![Trip::Consecutive(3)],
        open_wait: Backoff::fixed(Duration::from_secs(3600)),
        open_jitter: Jitter::None,
        ..BreakerConfig::default()
    };
    gate
}

async fn nobody_there(_: Context<'static>, _: u64) -> Result<(), Verdict> {
    Err(Verdict::Failed(Failure::retry(Kind::CONNECT, "nobody is there")))
}

async fn source_4_people_are_told_when_a_gate_opens(db: Db) {
    let mut sink = Sink::start().await;
    let builder = Engine::builder(db.store.clone()).notify(sink.config());
    let engine = builder
        .register_with("m", MethodOptions::default().gate(shut_after_three()), nobody_there)
        .start()
        .await
        .unwrap();
    engine.enqueue_many((0..10).map(new)).await.unwrap();
    let mail = sink.next_mail().await;
    let subject = header(&mail, "Subject").unwrap();
    assert!(subject.starts_with("[redrive] m keeps failing"), "{subject}");
    assert!(text(&mail).contains("gate.opened"), "{}", text(&mail));
    engine.stop().await;
    assert_eq!((sink.mails().len(), db.count("redrive_notice").await), (1, 0));
}

/// Nobody knows whether it was done.
struct Dark;

impl StepRunner for Dark {
    fn run<'a>(&'a self, _: &'a StepCx) -> Ran<'a> {
        Box::pin(std::future::ready(Err(StepError::unknown("the bank does not say"))))
    }
}

fn order() -> Definition {
    let pay = StepDef {
        name: "pay".into(),
        method: Some("dark".into()),
        pivot: true,
        undo: UndoKind::Irreversible,
        ..StepDef::default()
    };
    Definition { name: "order".into(), steps: vec![pay], ..Definition::default() }
}

async fn people_are_told_once_that_a_saga_is_stuck(db: Db) {
    let mut sink = Sink::start().await;
    let started = |builder: redrive::Builder| builder.saga_runner("dark", MethodOptions::default(), Dark).start();
    let engine = started(Engine::builder(db.store.clone()).notify(sink.config())).await.unwrap();
    engine.sagas().start_with(order(), "order-7", serde_json::json!(1)).await.unwrap();
    let mail = sink.next_mail().await;
    let subject = header(&mail, "Subject").unwrap();
    assert!(subject.starts_with("[redrive] saga order-7 (order) is stuck and needs a person"), "{subject}");
    let said = text(&mail).replace("=\r\n", "");
    assert!(said.contains("saga.stuck") && said.contains("at run of pay: the bank does not say"), "{said}");
    // What happens to it while it is stuck is nothing new.
    engine.sagas().edit_input("order-7", serde_json::json!(2), Some("ada"), None).await.unwrap();
    engine.stop().await;
    assert_eq!((sink.mails().len(), db.count("redrive_notice").await), (1, 0));
}

/// A service has no channels, the server beside it has: what happens at the service is told by the server.
async fn what_happens_on_a_node_without_channels_is_told_by_another(db: Db) {
    let now = db.store.now().await.unwrap();
    db.store.register(&Registration { name: "till-3".into(), ..Registration::default() }, now).await.unwrap();
    let ms = Duration::from_millis;
    let mut config = EngineConfig::default();
    (config.beat_interval, config.lease, config.margin) = (ms(100), ms(600), ms(100));
    let service = Engine::builder(db.another().await).config(config);
    let service = service.register_with("m", MethodOptions::default().gate(shut_after_three()), nobody_there);
    let service = service.saga_runner("dark", MethodOptions::default(), Dark).start().await.unwrap();
    service.enqueue_many((0..10).map(new)).await.unwrap();
    service.sagas().start_with(order(), "order-8", serde_json::json!(1)).await.unwrap();
    service.sagas().until("order-8", |state| state == SagaState::Stuck).await.unwrap();
    while db.count("redrive_notice").await < 3 {
        moment().await;
    }
    service.stop().await;
    let mut sink = Sink::start().await;
    let server = Engine::builder(db.another().await).notify(sink.config()).start().await.unwrap();
    let said = text(&sink.next_mail().await);
    server.stop().await;
    for kind in ["node.fenced", "gate.opened", "saga.stuck"] {
        assert!(said.contains(kind), "{kind}: {said}");
    }
    assert_eq!(db.count("redrive_notice").await, 0);
}
