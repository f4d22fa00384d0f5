//! What people do about sagas.

use std::sync::Arc;
use std::time::Duration;

use redrive::saga::{Definition, OnUndoFailure, SagaState, StepDef, UndoKind, With};
use redrive::store::{AuditFilter, TaskFilter};
use redrive::{Backoff, OnExhausted, Policy, TaskId};
use serde_json::json;

use crate::harness::{Db, Kind, Raw, stores};
use crate::script::{Say, World, journal, play, quick, saga, settled, step, trip, until, until_letter};

stores!(
    an_undo_that_is_left_out_is_a_gap,
    a_letter_of_what_another_task_does_by_now_waits_for_that,
    an_undo_that_a_person_has_done_is_none,
    the_other_undos_go_on_if_that_is_wanted,
    a_killed_saga_is_not_undone,
    a_saga_that_was_going_back_goes_forward,
    what_may_have_been_undone_is_settled_before_it_goes_forward,
    a_saga_with_a_wrong_input_is_given_another,
    what_waits_is_tried_now_and_what_was_given_up_again,
    a_retry_is_in_the_audit_also_if_whoever_asked_has_gone,
    the_point_of_no_return_cannot_be_passed_while_anything_is_undone,
    what_a_letter_brings_back_is_under_way_for_all_to_see,
    what_is_brought_back_is_not_given_up_by_what_was_before_it,
    what_is_tried_again_is_not_given_up_by_what_was_before_it,
    one_handler_for_the_whole_that_is_stuck_can_be_left_out_or_called_done,
    what_had_to_wait_heeds_what_was_said_on_another_node_meanwhile,
    a_pivot_that_nobody_has_begun_is_not_when_the_saga_is_cancelled,
    a_pivot_that_is_under_way_decides_what_becomes_of_a_cancelled_saga,
    no_id_ends_with_a_space,
    a_saga_that_somebody_holds_holds_up_no_other,
    a_step_under_another_policy_still_tells_its_saga,
    what_another_node_has_begun_again_goes_by_what_is_said_there,
    what_a_saga_waits_for_is_tried_until_it_succeeds,
);

/// What the audit says was done, the oldest first.
async fn audited(db: &Db) -> Vec<String> {
    let all = db.store.audits(&AuditFilter::default(), 100).await.unwrap();
    all.into_iter().rev().map(|a| format!("{} {} {}", a.entry.who, a.entry.action, a.entry.target)).collect()
}

async fn an_undo_that_is_left_out_is_a_gap(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]).will("flight/undo", [Say::Refuse]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Stuck);
    engine.sagas().skip("t", "flight", Some("ada"), Some("the airline is gone")).await.unwrap();
    assert_eq!(until(&engine, "t", SagaState::is_final).await, SagaState::CompensatedWithGaps);
    assert_eq!(audited(&db).await, ["ada saga.skip t"]);
    let ended = engine.sagas().skip("t", "flight", Some("ada"), None).await.unwrap_err().to_string();
    assert!(ended.contains("it has ended"), "{ended}");
    engine.stop().await;
}

async fn an_undo_that_a_person_has_done_is_none(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]).will("flight/undo", [Say::Fail, Say::Fail, Say::Fail]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Stuck);
    engine.sagas().resolve("t", "flight", json!(null), Some("ada"), None).await.unwrap();
    assert_eq!(until(&engine, "t", SagaState::is_final).await, SagaState::Compensated);
    engine.stop().await;
}

async fn the_other_undos_go_on_if_that_is_wanted(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]).will("flight/undo", [Say::Refuse]);
    let mut definition = trip();
    definition.on_undo_failure = OnUndoFailure::Continue;
    engine.sagas().start_with(definition, "t", json!(1)).await.unwrap();
    world.until_seen("hotel/undo", 1).await;
    assert_eq!(settled(&engine, "t").await, SagaState::Stuck, "not compensated: one is missing");
    assert!(engine.sagas().retry_now("t", Some("ada"), None).await.unwrap() >= 1);
    assert_eq!(until(&engine, "t", SagaState::is_final).await, SagaState::Compensated);
    engine.stop().await;
}

async fn a_killed_saga_is_not_undone(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Hang]);
    engine.sagas().start_with(trip(), "t", json!(1)).await.unwrap();
    world.until_seen("car", 1).await;
    engine.sagas().kill("t", Some("ada"), Some("a mistake")).await.unwrap();
    assert_eq!(settled(&engine, "t").await, SagaState::Killed);
    engine.stop().await;
    assert_eq!(world.seen(), ["hotel", "flight", "car"]);
    assert_eq!(audited(&db).await, ["ada saga.kill t"]);
}

async fn a_saga_that_was_going_back_goes_forward(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]).will("hotel/undo", [Say::Refuse]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Stuck);
    engine.sagas().forward("t", None, Some("ada"), Some("there are cars again")).await.unwrap();
    assert_eq!(until(&engine, "t", SagaState::is_final).await, SagaState::Succeeded);
    let seen = world.seen();
    assert_eq!(seen[5..], ["flight", "car"], "the hotel was never given up: {seen:?}");
    assert!(world.keys().contains(&"t/flight#2/run".into()), "what was undone is done anew: {:?}", world.keys());
    assert_eq!(world.keys().iter().filter(|key| *key == "t/car/run").count(), 2, "what had failed is the same effect");
    engine.stop().await;
}

async fn what_may_have_been_undone_is_settled_before_it_goes_forward(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let sagas = engine.sagas();
    for (id, lost) in [("undone", Say::Fail), ("not", Say::Refuse)] {
        // Refused at a later attempt, an earlier one may have undone it.
        world.will("car", [Say::Refuse]).will("hotel/undo", [Say::Fail, lost, Say::Refuse]);
        sagas.start_with(trip(), id, json!(1)).await.unwrap();
        while settled(&engine, id).await != SagaState::Stuck {}
        let why = sagas.forward(id, None, Some("ada"), None).await.unwrap_err().to_string();
        assert!(why.contains("not known whether \"hotel\" was undone"), "{why}");
        sagas.forward(id, Some(id == "undone"), Some("ada"), None).await.unwrap();
        assert_eq!(until(&engine, id, SagaState::is_final).await, SagaState::Succeeded);
        let anew = world.keys().contains(&format!("{id}/hotel#2/run"));
        assert_eq!(anew, id == "undone", "what was undone is done anew, and nothing else: {:?}", world.keys());
    }
    engine.stop().await;
}

async fn a_saga_with_a_wrong_input_is_given_another(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Fail, Say::Fail, Say::Fail]);
    let mut definition = trip();
    let slow = redrive::Policy { backoff: redrive::Backoff::fixed(std::time::Duration::from_secs(3600)), ..quick() };
    definition.steps[2].policy = Some(slow);
    world.will("car", [Say::Fail]);
    engine.sagas().start_with(definition, "t", json!({ "who": "Ad" })).await.unwrap();
    world.until_seen("car", 1).await;
    engine.sagas().edit_input("t", json!({ "who": "Ada" }), Some("bob"), None).await.unwrap();
    while engine.sagas().retry_now("t", Some("bob"), None).await.unwrap() == 0 {} // its failure is just being written
    assert_eq!(settled(&engine, "t").await, SagaState::Succeeded);
    assert_eq!(world.inputs().last().unwrap(), &json!({ "who": "Ada" }));
    assert!(audited(&db).await.contains(&"bob saga.edit_input t".into()));
    engine.stop().await;
}

async fn what_waits_is_tried_now_and_what_was_given_up_again(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let mut definition = trip();
    definition.steps[0].pivot = true;
    world.will("flight", [Say::Fail, Say::Fail, Say::Fail]);
    assert_eq!(play(&engine, definition, "t").await, SagaState::Stuck);
    // Its letter was dropped: there is nothing to redrive, so it is begun again.
    let letters = db.store.dead(&redrive::store::DeadFilter::default(), 10).await.unwrap();
    let ids: Vec<_> = letters.iter().map(|letter| letter.task.id).collect();
    db.store.discard(&ids, "eve", None, db.store.now().await.unwrap()).await.unwrap();
    assert_eq!(engine.sagas().retry_now("t", Some("ada"), None).await.unwrap(), 1);
    assert_eq!(until(&engine, "t", SagaState::is_final).await, SagaState::Succeeded);
    engine.stop().await;
}

async fn a_retry_is_in_the_audit_also_if_whoever_asked_has_gone(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]).will("flight/undo", [Say::Fail, Say::Fail, Say::Fail]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Stuck);
    _ = tokio::time::timeout(Duration::ZERO, engine.sagas().retry_now("t", Some("ada"), None)).await;
    let is_done = async {
        assert_eq!(until(&engine, "t", SagaState::is_final).await, SagaState::Compensated);
        while audited(&db).await.is_empty() {}
    };
    tokio::time::timeout(Duration::from_secs(120), is_done).await.unwrap();
    assert_eq!(audited(&db).await, ["ada saga.retry t"]);
    engine.stop().await;
}

/// Letters become tasks again.
async fn redrive(engine: &redrive::Engine, letters: &[TaskId]) {
    engine.store().redrive(letters, None, "ada", engine.store().now().await.unwrap()).await.unwrap();
    engine.wake();
}

async fn the_point_of_no_return_cannot_be_passed_while_anything_is_undone(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let mut definition = trip();
    (definition.steps[2].pivot, definition.steps[2].undo) = (true, UndoKind::Irreversible);
    world.will("car", [Say::Unknown]).will("flight/undo", [Say::Hold]);
    assert_eq!(play(&engine, definition, "t").await, SagaState::Stuck);
    let letters = until_letter(&db).await;
    engine.sagas().cancel("t", Some("ada"), None).await.unwrap();
    world.until_seen("flight/undo", 1).await;
    let late = engine.sagas().resolve("t", "car", json!(1), Some("bob"), None).await.unwrap_err().to_string();
    assert!(late.contains("is being undone"), "{late}");
    redrive(&engine, &letters).await;
    while db.count("retry_task").await > 1 {} // the letter's task leaves, the undo is under way
    world.let_go();
    assert_eq!(settled(&engine, "t").await, SagaState::CompensatedWithGaps);
    assert_eq!(world.seen(), ["hotel", "flight", "car", "flight/undo", "hotel/undo"]);
    engine.stop().await;
}

async fn what_a_letter_brings_back_is_under_way_for_all_to_see(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]).will("flight/undo", [Say::Refuse, Say::Hold]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Stuck);
    redrive(&engine, &until_letter(&db).await).await;
    world.until_seen("flight/undo", 2).await;
    let busy = engine.sagas().forward("t", None, Some("bob"), None).await.unwrap_err().to_string();
    assert!(busy.contains("still being stopped or undone"), "{busy}");
    world.let_go();
    assert_eq!(settled(&engine, "t").await, SagaState::Compensated);
    engine.stop().await;
}

/// What ends tells its saga so by a task, which may come late.
const ENDED: &str = "redrive.saga.ended";

async fn what_is_brought_back_is_not_given_up_by_what_was_before_it(db: Db) {
    for (id, says) in
        [("refused", vec![Say::Refuse, Say::Hold]), ("exhausted", vec![Say::Fail, Say::Fail, Say::Fail, Say::Hold])]
    {
        let world = World::default();
        let engine = world.engine(&db.store).await;
        engine.pause(ENDED, None).await.unwrap();
        let tries = says.len();
        world.will("car", [Say::Refuse]).will("flight/undo", says);
        engine.sagas().start_with(trip(), id, json!(1)).await.unwrap();
        redrive(&engine, &until_letter(&db).await).await;
        world.until_seen("flight/undo", tries).await;
        // Only now is it heard that the first was given up: the second goes on all the same.
        engine.resume(ENDED, None).await.unwrap();
        while db.count("retry_task").await > 1 {}
        let busy = engine.sagas().forward(id, None, Some("bob"), None).await.unwrap_err().to_string();
        assert!(busy.contains("still being stopped or undone"), "{busy}");
        world.let_go();
        assert_eq!(settled(&engine, id).await, SagaState::Compensated, "{:#?}", journal(&engine, id).await);
        engine.stop().await;
    }
}

async fn what_is_tried_again_is_not_given_up_by_what_was_before_it(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    engine.pause(ENDED, None).await.unwrap();
    world.will("car", [Say::Refuse]).will("flight/undo", [Say::Refuse, Say::Hold]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Stuck);
    let letters = until_letter(&db).await;
    db.store.discard(&letters, "eve", None, db.store.now().await.unwrap()).await.unwrap();
    assert_eq!(engine.sagas().retry_now("t", Some("ada"), None).await.unwrap(), 1);
    world.until_seen("flight/undo", 2).await;
    engine.resume(ENDED, None).await.unwrap();
    while db.count("retry_task").await > 1 {}
    let busy = engine.sagas().forward("t", None, Some("bob"), None).await.unwrap_err().to_string();
    assert!(busy.contains("still being stopped or undone"), "{busy}");
    world.let_go();
    assert_eq!(settled(&engine, "t").await, SagaState::Compensated);
    engine.stop().await;
}

async fn a_letter_of_what_another_task_does_by_now_waits_for_that(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let mut definition = trip();
    (definition.steps[2].pivot, definition.steps[2].undo) = (true, UndoKind::Irreversible);
    world.will("car", [Say::Unknown, Say::Hold]);
    assert_eq!(play(&engine, definition, "t").await, SagaState::Stuck);
    let letters = until_letter(&db).await;
    engine.sagas().forward("t", None, Some("ada"), None).await.unwrap();
    world.until_seen("car", 2).await;
    redrive(&engine, &letters).await;
    while db.sql("SELECT COUNT(*) FROM retry_task WHERE postponements > 0").await == Some(0) {}
    assert_eq!(world.seen(), ["hotel", "flight", "car", "car"]);
    world.let_go();
    assert_eq!(settled(&engine, "t").await, SagaState::Succeeded);
    assert_eq!(world.seen(), ["hotel", "flight", "car", "car"]);
    engine.stop().await;
}

async fn one_handler_for_the_whole_that_is_stuck_can_be_left_out_or_called_done(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let with = With { method: Some("go".into()), policy: Some(quick()), ..With::default() };
    let definition = Definition { compensate_with: Some(with), ..trip() };
    for (id, ends) in [("t", SagaState::Compensated), ("u", SagaState::CompensatedWithGaps)] {
        world.will("car", [Say::Refuse]).will("compensate/undo", [Say::Refuse]);
        assert_eq!(play(&engine, definition.clone(), id).await, SagaState::Stuck);
        match ends {
            SagaState::Compensated => engine.sagas().resolve(id, "compensate", json!(1), Some("ada"), None).await,
            _ => engine.sagas().skip(id, "compensate", Some("ada"), None).await,
        }
        .unwrap();
        assert_eq!(until(&engine, id, SagaState::is_final).await, ends);
    }
    engine.stop().await;
}

async fn what_had_to_wait_heeds_what_was_said_on_another_node_meanwhile(db: Db) {
    let (here, there) = (World::default(), World::default());
    let one_at_a_time = redrive::MethodOptions::default().concurrency(1);
    let (engine, clock) = here.engine_and_clock_with(&db.another().await, one_at_a_time).await;
    let other = there.engine_of(&db.another().await, &["elsewhere"]).await;
    here.will("first", [Say::Hold]);
    engine.sagas().start_with(saga([step("first", &[])]), "busy", json!(1)).await.unwrap();
    here.until_seen("first", 1).await;
    engine.sagas().start_with(saga([step("pay", &[])]), "t", json!({ "amount": 100 })).await.unwrap();
    other.sagas().edit_input("t", json!({ "amount": 10 }), Some("ada"), None).await.unwrap();
    clock.advance(Duration::from_secs(2));
    here.let_go();
    assert_eq!(settled(&engine, "t").await, SagaState::Succeeded);
    assert_eq!(here.inputs().last().unwrap(), &json!({ "amount": 10 }));
    engine.stop().await;
    other.stop().await;
}

/// A hotel, and a payment that cannot be taken back, by another method.
fn paid_trip() -> Definition {
    let pay = StepDef {
        method: Some("pay".into()),
        pivot: true,
        undo: UndoKind::Irreversible,
        policy: Some(Policy { backoff: Backoff::fixed(Duration::from_secs(3600)), ..quick() }),
        ..step("pay", &["hotel"])
    };
    saga([step("hotel", &[]), pay])
}

async fn a_pivot_that_nobody_has_begun_is_not_when_the_saga_is_cancelled(db: Db) {
    let world = World::default();
    let one_at_a_time = redrive::MethodOptions::default().concurrency(1);
    let engine = world.engine_with(&db.store, &["go", "pay"], one_at_a_time).await;
    world.will("other", [Say::Hold]);
    let other = StepDef { method: Some("pay".into()), ..step("other", &[]) };
    engine.sagas().start_with(saga([other]), "busy", json!(1)).await.unwrap();
    world.until_seen("other", 1).await;
    engine.sagas().start_with(paid_trip(), "t", json!(1)).await.unwrap();
    let waits = || async { engine.sagas().get("t").await.unwrap().unwrap().steps()[1].run == "started" };
    while !waits().await {}
    engine.sagas().cancel("t", Some("ada"), None).await.unwrap();
    assert_eq!(settled(&engine, "t").await, SagaState::Compensated);
    world.let_go();
    assert_eq!(settled(&engine, "busy").await, SagaState::Succeeded);
    assert!(!world.seen().contains(&"pay".into()), "{:?}", world.seen());
    engine.stop().await;
}

async fn a_pivot_that_is_under_way_decides_what_becomes_of_a_cancelled_saga(db: Db) {
    let world = World::default();
    let engine = world.engine_of(&db.store, &["go", "pay"]).await;
    world.will("pay", [Say::Hold]);
    engine.sagas().start_with(paid_trip(), "done", json!(1)).await.unwrap();
    world.until_seen("pay", 1).await;
    engine.sagas().cancel("done", Some("ada"), None).await.unwrap();
    world.let_go();
    assert_eq!(settled(&engine, "done").await, SagaState::Succeeded, "there is no way back any more");
    // It waits to be tried again: that it does not, but it may have happened.
    world.will("pay", [Say::Fail]);
    engine.sagas().start_with(paid_trip(), "unknown", json!(1)).await.unwrap();
    world.until_seen("pay", 2).await;
    engine.sagas().cancel("unknown", Some("ada"), None).await.unwrap();
    assert_eq!(settled(&engine, "unknown").await, SagaState::Stuck);
    assert_eq!(world.seen(), ["hotel", "pay", "hotel", "pay"]);
    engine.sagas().resolve("unknown", "pay", json!(1), Some("ada"), None).await.unwrap();
    assert_eq!(until(&engine, "unknown", SagaState::is_final).await, SagaState::Succeeded);
    engine.stop().await;
}

/// MySQL would take it for the one without.
async fn no_id_ends_with_a_space(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Succeeded);
    let said = engine.sagas().start_with(trip(), "t ", json!(1)).await.unwrap_err().to_string();
    assert!(said.contains("a space at its end"), "{said}");
    assert_eq!(engine.sagas().get("t ").await.unwrap(), None);
    engine.stop().await;
}

async fn a_saga_that_somebody_holds_holds_up_no_other(db: Db) {
    if db.kind == Kind::Sqlite {
        return; // who writes there holds the whole file
    }
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("hotel", [Say::Hold]);
    engine.sagas().start_with(trip(), "held", json!(1)).await.unwrap();
    world.until_seen("hotel", 1).await;
    let mut raw = Raw::connect(&db).await;
    raw.begin().await;
    raw.sql("UPDATE redrive_saga SET version = version + 1 WHERE id = 'held'").await.unwrap();
    world.let_go();
    let edited = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.sagas().edit_input("held", json!(2), Some("ada"), None).await })
    };
    for n in 0..3 {
        assert_eq!(play(&engine, trip(), &format!("t{n}")).await, SagaState::Succeeded);
    }
    raw.commit().await;
    edited.await.unwrap().unwrap();
    assert_eq!(settled(&engine, "held").await, SagaState::Succeeded);
    engine.stop().await;
}

async fn a_step_under_another_policy_still_tells_its_saga(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let once = Arc::new(Policy { max_attempts: Some(1), on_exhausted: OnExhausted::Drop, ..quick() });
    let mut definition = trip();
    definition.steps[2].policy = Some(Policy { backoff: Backoff::fixed(Duration::from_secs(3600)), ..quick() });
    world.will("car", [Say::Fail]).will("flight/undo", [Say::Refuse, Say::Fail]);
    engine.sagas().start_with(definition, "t", json!(1)).await.unwrap();
    world.until_seen("car", 1).await;
    let tasks = engine.store().list(&TaskFilter::default(), 10).await.unwrap();
    let car = tasks.iter().find(|task| task.params.contains("\"car\"")).unwrap();
    while engine.store().get(car.id).await.unwrap().unwrap().attempts == 0 {} // its failure is just being written
    engine.edit_policy(car.id, &once, Some("ada")).await.unwrap();
    engine.retry_now(car.id, Some("ada")).await.unwrap();
    assert_eq!(settled(&engine, "t").await, SagaState::Stuck, "it was given up, and the way back began");
    let letters = until_letter(&db).await;
    engine.store().redrive(&letters, Some(once), "ada", engine.store().now().await.unwrap()).await.unwrap();
    engine.wake();
    world.until_seen("flight/undo", 2).await;
    assert_eq!(settled(&engine, "t").await, SagaState::Stuck, "and so does a letter that is brought back");
    engine.stop().await;
}

/// This node remembers that the payment was begun. Before it has a slot for it, all is taken back and begun again elsewhere, under the same
/// name.
async fn what_another_node_has_begun_again_goes_by_what_is_said_there(db: Db) {
    let (here, there) = (World::default(), World::default());
    let engine = here.engine_of_one_slot(&db.another().await).await;
    let other = there.engine_of(&db.another().await, &["elsewhere"]).await;
    here.will("first", [Say::Hold]);
    engine.sagas().start_with(saga([step("first", &[])]), "busy", json!(1)).await.unwrap();
    here.until_seen("first", 1).await;
    there.will("hotel/undo", [Say::Refuse]);
    let hotel = StepDef { method: Some("elsewhere".into()), ..step("hotel", &[]) };
    let definition = saga([hotel, step("pay", &["hotel"])]);
    other.sagas().start_with(definition, "t", json!({ "amount": 0 })).await.unwrap();
    let begun = async || other.sagas().get("t").await.unwrap().unwrap().steps()[1].run == "started";
    while !begun().await {}
    engine.sagas().edit_input("t", json!({ "amount": 100 }), Some("ada"), None).await.unwrap();
    other.sagas().cancel("t", Some("ada"), None).await.unwrap();
    assert_eq!(settled(&other, "t").await, SagaState::Stuck);
    other.sagas().edit_input("t", json!({ "amount": 10 }), Some("ada"), None).await.unwrap();
    other.sagas().forward("t", None, Some("ada"), None).await.unwrap();
    here.let_go();
    assert_eq!(settled(&other, "t").await, SagaState::Succeeded);
    assert_eq!(here.inputs().last().unwrap(), &json!({ "amount": 10 }));
    engine.stop().await;
    other.stop().await;
}

/// An engine that runs no steps leaves everything to others, so it can be looked at.
async fn what_a_saga_waits_for_is_tried_until_it_succeeds(db: Db) {
    let engine = redrive::Engine::builder(db.store.clone()).start().await.unwrap();
    engine.sagas().start_with(trip(), "t", json!(1)).await.unwrap();
    let tasks = async || engine.store().list(&TaskFilter::default(), 10).await.unwrap();
    let hotel = tasks().await[0].id;
    engine.sagas().cancel("t", Some("ada"), None).await.unwrap();
    engine.store().fail(hotel, engine.store().now().await.unwrap()).await.unwrap();
    let left = tasks().await;
    let mut methods: Vec<&str> = left.iter().map(|task| &*task.method).collect();
    methods.sort_unstable();
    assert_eq!(methods, ["redrive.saga.ended", "redrive.saga.stop"]);
    assert!(left.iter().all(|task| (task.policy.max_attempts, task.policy.max_crashes) == (None, 1_000)), "{left:?}");
    engine.stop().await;
}
