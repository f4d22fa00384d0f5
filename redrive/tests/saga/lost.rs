//! Work whose task is gone: its saga says that it is stuck, and people have all their ways to go on.

use std::time::Duration;

use redrive::saga::{Definition, Event, SagaState, StepDef, StepKind, UndoKind, WhenUp};
use redrive::{Backoff, Clock, Engine, Policy};
use serde_json::json;

use crate::harness::{Db, moment, stores};
use crate::script::{Say, World, journal, quick, saga, settled, step, until};

stores!(
    a_saga_whose_task_is_gone_is_stuck_and_can_be_repaired,
    an_undo_whose_task_is_gone_makes_its_saga_stuck,
    what_waits_is_not_lost,
);

/// A failed attempt of it is repeated long after the test.
fn slow(name: &str, after: &[&str]) -> StepDef {
    let late = Policy { backoff: Backoff::fixed(Duration::from_secs(360_000)), max_attempts: Some(9), ..quick() };
    StepDef { policy: Some(late.clone()), undo_policy: Some(late), ..step(name, after) }
}

fn two_steps() -> Definition {
    saga([step("hotel", &[]), slow("flight", &["hotel"])])
}

/// Removes the tasks of a saga behind redrive's back, once the attempt that is under way has ended.
async fn lose_tasks(db: &Db, id: &str) {
    let waiting =
        format!("SELECT COUNT(*) FROM retry_task WHERE business_id = '{id}' AND status = 0 AND attempt_count > 0");
    while db.sql(&waiting).await != Some(1) {
        moment().await;
    }
    db.sql(&format!("DELETE FROM retry_task WHERE business_id = '{id}'")).await;
}

/// Lets time pass until a saga is stuck.
async fn until_stuck(engine: &Engine, clock: &Clock, id: &str) {
    for _ in 0..600 {
        clock.advance(Duration::from_secs(5));
        let sagas = engine.sagas();
        let look = sagas.until(id, |state| state == SagaState::Stuck);
        if tokio::time::timeout(Duration::from_millis(200), look).await.is_ok() {
            return;
        }
    }
    panic!("{id} is not stuck: {:#?}", journal(engine, id).await);
}

async fn a_saga_whose_task_is_gone_is_stuck_and_can_be_repaired(db: Db) {
    let world = World::default();
    let (engine, clock) = world.engine_and_clock(&db.store).await;
    let ids = ["retry", "skip", "resolve", "forward", "back"];
    world.will("flight", ids.map(|_| Say::Fail));
    for (n, id) in ids.into_iter().enumerate() {
        engine.sagas().start_with(two_steps(), id, json!(1)).await.unwrap();
        world.until_seen("flight", n + 1).await;
        lose_tasks(&db, id).await;
    }
    for id in ids {
        until_stuck(&engine, &clock, id).await;
        assert!(matches!(journal(&engine, id).await.last(), Some(Event::Lost { .. })));
    }
    let sagas = engine.sagas();
    assert_eq!(sagas.retry_now("retry", Some("ada"), None).await.unwrap(), 1);
    sagas.skip("skip", "flight", Some("ada"), None).await.unwrap();
    sagas.resolve("resolve", "flight", json!("booked"), Some("ada"), None).await.unwrap();
    sagas.forward("forward", None, Some("ada"), None).await.unwrap();
    sagas.cancel("back", Some("ada"), None).await.unwrap();
    for id in ids {
        let end = if id == "back" { SagaState::Compensated } else { SagaState::Succeeded };
        assert_eq!(settled(&engine, id).await, end, "{id}");
    }
    // Whether the flight was booked is not known, so it is cancelled.
    assert_eq!(world.seen().iter().filter(|seen| *seen == "flight/undo").count(), 1);
    engine.stop().await;
}

async fn an_undo_whose_task_is_gone_makes_its_saga_stuck(db: Db) {
    let world = World::default();
    let (engine, clock) = world.engine_and_clock(&db.store).await;
    world.will("flight", [Say::Refuse]).will("hotel/undo", [Say::Fail]);
    let steps = saga([slow("hotel", &[]), step("flight", &["hotel"])]);
    engine.sagas().start_with(steps, "t", json!(1)).await.unwrap();
    world.until_seen("hotel/undo", 1).await;
    lose_tasks(&db, "t").await;
    until_stuck(&engine, &clock, "t").await;
    engine.sagas().retry_now("t", Some("ada"), None).await.unwrap();
    assert_eq!(settled(&engine, "t").await, SagaState::Compensated);
    engine.stop().await;
}

/// A saga with a task, and one that waits for a signal, without any time limit, beside one that has lost its task.
async fn what_waits_is_not_lost(db: Db) {
    let world = World::default();
    let (engine, clock) = world.engine_and_clock(&db.store).await;
    let kind = StepKind::WaitFor { signal: "yes".into(), timeout: None, when_up: WhenUp::Compensate };
    let wait = StepDef { kind, undo: UndoKind::Nothing, ..step("yes", &["hotel"]) };
    engine.sagas().start_with(saga([step("hotel", &[]), wait]), "signal", json!(1)).await.unwrap();
    until(&engine, "signal", |state| state == SagaState::Waiting).await;
    world.will("flight", [Say::Fail, Say::Fail]);
    for (n, id) in ["waits", "lost"].into_iter().enumerate() {
        engine.sagas().start_with(two_steps(), id, json!(1)).await.unwrap();
        world.until_seen("flight", n + 1).await;
    }
    lose_tasks(&db, "lost").await;
    until_stuck(&engine, &clock, "lost").await;
    for (id, state) in [("signal", SagaState::Waiting), ("waits", SagaState::Running)] {
        assert_eq!(engine.sagas().get(id).await.unwrap().unwrap().summary.state, state);
    }
    engine.stop().await;
}
