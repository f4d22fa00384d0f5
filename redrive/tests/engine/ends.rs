//! Ends of attempts that do not go as they should: outcomes that the database refuses, words of handlers that were cut off, work that
//! comes with a stop or after its time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use redrive::{
    Context, DeadReason, Engine, EngineConfig, Event, FinalFailure, NewTask, Policy, Status, StoreOptions, Timestamp,
    Verdict,
};
use tokio::sync::mpsc;

use crate::harness::{Db, Kind, Raw, moment, new, options, refusal, stores};

stores!(
    an_outcome_that_the_database_refuses_is_written_when_it_can_be,
    what_was_written_with_a_refused_outcome_is_not_lost,
    a_callback_may_tell_of_params_as_large_as_they_may_be,
    what_a_handler_said_holds_when_its_time_is_up,
    what_a_function_says_through_its_context_holds,
    a_handler_that_ends_in_the_grace_of_a_stop_may_enqueue,
    what_is_past_its_deadline_is_not_begun,
    what_does_not_fit_into_memory_runs_all_the_same,
    an_outcome_that_costs_the_connection_does_not_hold_up_the_others,
);

fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_millis(100);
    config.sweep_interval = Duration::from_millis(500);
    config
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    while !holds().await {
        moment().await;
    }
}

/// Servers refuse what is too large by closing the connection, and that looks like one that is away. Here PostgreSQL is made to.
async fn an_outcome_that_costs_the_connection_does_not_hold_up_the_others(db: Db) {
    if db.kind != Kind::Postgres {
        return;
    }
    let mut raw = Raw::connect(&db).await;
    raw.sql(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NEW.params_json = '13' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$; \
         CREATE TRIGGER cut BEFORE INSERT ON retry_dead FOR EACH ROW EXECUTE FUNCTION cut()",
    )
    .await
    .unwrap();
    let mut options = options();
    options.retry_for = Duration::from_millis(200);
    let store = redrive::Store::open_with(&db.url, options).await.unwrap();
    let handler = |_: Context<'static>, _: u64| std::future::ready(Err(Verdict::fatal("no")));
    let engine = Engine::builder(store).config(config()).register("m", handler).start().await.unwrap();
    engine.enqueue_many((0..40).map(new)).await.unwrap();
    let written = until(async || db.count("retry_dead").await == 39);
    tokio::time::timeout(Duration::from_secs(60), written).await.expect("the others are written");
    raw.sql("DROP TRIGGER cut ON retry_dead").await.unwrap();
    let written = until(async || db.count("retry_dead").await == 40);
    tokio::time::timeout(Duration::from_secs(60), written).await.expect("it is written, too");
    engine.stop().await;
}

/// It is not called again, and the others do not wait for it.
async fn an_outcome_that_the_database_refuses_is_written_when_it_can_be(db: Db) {
    let calls: Arc<Mutex<HashMap<u64, u32>>> = Arc::default();
    let counts = calls.clone();
    let handler = move |_: Context<'static>, n: u64| {
        *counts.lock().unwrap().entry(n).or_default() += 1;
        std::future::ready(Err(Verdict::fatal("no")))
    };
    let (refuse, allow) = refusal(db.kind);
    let mut raw = Raw::connect(&db).await;
    raw.sql(refuse).await.unwrap();
    let engine = Engine::builder(db.store.clone()).config(config()).register("m", handler).start().await.unwrap();
    engine.enqueue_many((0..40).map(new)).await.unwrap();
    until(async || db.count("retry_dead").await == 39).await;
    until(async || engine.stats().running == 1).await; // its outcome is known here
    raw.sql(allow).await.unwrap();
    until(async || db.count("retry_dead").await == 40).await;
    engine.stop().await;
    assert!(calls.lock().unwrap().values().all(|n| *n == 1), "{calls:?}");
    assert_eq!(db.count("retry_task").await, 0);
}

/// One flush is several transactions; those before the one that fails are committed.
async fn what_was_written_with_a_refused_outcome_is_not_lost(db: Db) {
    let together = Arc::new(tokio::sync::Barrier::new(30));
    let handler = move |_: Context<'static>, n: u64| {
        let together = together.clone();
        async move {
            together.wait().await;
            match n {
                13 => Err(Verdict::fatal("no")),
                n if n % 2 == 0 => Ok(()),
                _ => Err(Verdict::Snooze(Duration::from_secs(3600))),
            }
        }
    };
    let ((refuse, allow), mut raw) = (refusal(db.kind), Raw::connect(&db).await);
    raw.sql(refuse).await.unwrap();
    let engine = Engine::builder(db.store.clone()).config(config()).register("m", handler).start().await.unwrap();
    let mut events = engine.events();
    engine.enqueue_many((0..30).map(new)).await.unwrap();
    let mut ends = HashMap::<&str, u32>::new();
    while ends.values().sum::<u32>() < 29 {
        if let Ok(Event::Task { what: what @ ("done" | "postponed" | "lost"), .. }) = events.recv().await {
            *ends.entry(what).or_default() += 1;
        }
    }
    assert_eq!(ends, HashMap::from([("done", 15), ("postponed", 14)]));
    raw.sql(allow).await.unwrap();
    until(async || db.count("retry_dead").await == 1).await;
    engine.stop().await;
}

async fn a_callback_may_tell_of_params_as_large_as_they_may_be(db: Db) {
    let mut small: StoreOptions = options();
    small.max_params = 10_000;
    let store = redrive::Store::open_with(&db.url, small).await.unwrap();
    let (sender, mut told) = mpsc::unbounded_channel();
    let refund = move |_: Context<'static>, failure: FinalFailure<String>| {
        _ = sender.send(failure.params.len());
        std::future::ready(Ok(()))
    };
    let engine = Engine::builder(store)
        .config(config())
        .register("m", async |_: Context, _: String| Err(Verdict::fatal("x".repeat(100_000))))
        .register("refund", refund);
    let engine = engine.start().await.unwrap();
    let policy = Policy { on_final_failure: Some("refund".into()), ..Policy::default() };
    engine.enqueue(NewTask::new("m", &"y".repeat(9_998)).unwrap().policy(policy)).await.unwrap();
    assert_eq!(told.recv().await, Some(9_998));
    engine.stop().await;
    assert_eq!(db.count("retry_dead").await, 1);
}

async fn what_a_handler_said_holds_when_its_time_is_up(db: Db) {
    let handler = async |cx: Context, _: u64| {
        cx.fatal();
        std::future::pending().await
    };
    let engine = Engine::builder(db.store.clone()).config(config()).register("m", handler).start().await.unwrap();
    let policy = Policy { timeout: Some(Duration::from_millis(50)), ..Policy::default() };
    let id = engine.enqueue(new(1).policy(policy)).await.unwrap().id;
    until(async || db.count("retry_dead").await == 1).await;
    engine.stop().await;
    let letter = db.store.get_dead(id).await.unwrap().unwrap();
    assert_eq!((letter.reason, letter.task.attempts), (DeadReason::Rejected, 1));
    assert_eq!(letter.task.last_error.unwrap().kind.as_str(), "timeout");
}

async fn what_a_function_says_through_its_context_holds(db: Db) {
    let handler = async |cx: Context, _: u64| {
        match cx.task().unwrap().postponements {
            0 => cx.snooze(Duration::from_millis(1)),
            _ => cx.cancel(),
        }
        Err(Verdict::from(std::fmt::Error))
    };
    let engine = Engine::builder(db.store.clone()).config(config()).register("m", handler).start().await.unwrap();
    engine.enqueue(new(1)).await.unwrap();
    until(async || db.count("retry_task").await == 0).await;
    engine.stop().await;
    assert_eq!(db.count("retry_dead").await, 0, "it was cancelled");
}

async fn a_handler_that_ends_in_the_grace_of_a_stop_may_enqueue(db: Db) {
    let (begun, mut calls) = mpsc::unbounded_channel();
    let (itself, gate): (Arc<OnceLock<Engine>>, _) = (Arc::default(), Arc::new(tokio::sync::Semaphore::new(0)));
    let (engine, waits) = (itself.clone(), gate.clone());
    let handler = move |_: Context<'static>, _: u64| {
        let (begun, engine, gate) = (begun.clone(), engine.clone(), waits.clone());
        async move {
            _ = begun.send(());
            _ = gate.acquire().await;
            engine.get().unwrap().enqueue(NewTask::new("later", &2)?).await?;
            Ok(())
        }
    };
    let engine = Engine::builder(db.store.clone()).config(config()).register("m", handler).start().await.unwrap();
    _ = itself.set(engine.clone());
    engine.enqueue(new(1)).await.unwrap();
    calls.recv().await.unwrap();
    let stopping = tokio::spawn({
        let engine = engine.clone();
        async move { engine.stop().await }
    });
    until(async || engine.troubles().contains(&"this node is stopping")).await;
    gate.add_permits(1);
    stopping.await.unwrap();
    let waiting = db.store.list(&Default::default(), 10).await.unwrap();
    let [task] = waiting.as_slice() else { panic!("{waiting:?}") };
    assert_eq!((&*task.method, task.status), ("later", Status::Pending));
}

async fn what_is_past_its_deadline_is_not_begun(db: Db) {
    let handler = async |_: Context, _: u64| panic!("it was begun");
    let engine = Engine::builder(db.store.clone()).config(config()).register("m", handler).start().await.unwrap();
    let past = Policy { deadline: Some(Timestamp::from_millis(1)), ..Policy::default() };
    let id = engine.enqueue(new(1).policy(past)).await.unwrap().id;
    until(async || db.count("retry_dead").await == 1).await;
    engine.stop().await;
    let letter = db.store.get_dead(id).await.unwrap().unwrap();
    assert_eq!((letter.reason, letter.task.attempts), (DeadReason::Expired, 0));
}

async fn what_does_not_fit_into_memory_runs_all_the_same(db: Db) {
    let (sender, mut calls) = mpsc::unbounded_channel();
    let handler = move |_: Context<'static>, n: u64| {
        _ = sender.send(n);
        std::future::ready(Ok(()))
    };
    let mut config = config();
    config.concurrency = 1; // so that sixteen are enough to have in memory
    let engine = Engine::builder(db.store.clone()).config(config).register("m", handler).start().await.unwrap();
    engine.pause("m", None).await.unwrap();
    engine.enqueue_many((0..100).map(new)).await.unwrap();
    engine.resume("m", None).await.unwrap();
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 100 {
        assert!(seen.insert(calls.recv().await.unwrap()), "once each");
    }
    engine.stop().await;
}
