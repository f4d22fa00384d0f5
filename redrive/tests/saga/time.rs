//! Waits, reservations, deadlines.

use std::time::Duration;

use redrive::MethodOptions;
use redrive::saga::{Definition, SagaState, StepDef, StepKind, UndoKind, WhenUp};
use redrive::testing::Testing;
use serde_json::{Value, json};

use crate::harness::{Db, stores};
use crate::script::{Say, World, play, saga, settled, step, trip, until};

stores!(
    a_signal_is_heard_whenever_it_comes,
    a_wait_that_is_not_answered_ends_the_saga,
    a_reservation_is_confirmed_when_all_is_done,
    a_reservation_whose_time_is_up_is_released_and_the_saga_begins_anew,
    a_confirmation_that_is_refused_needs_a_person,
    past_its_deadline_a_saga_is_undone,
    a_step_has_a_deadline_too,
    what_a_dead_node_was_waiting_for_is_found,
);

fn wait(name: &str, after: &[&str], timeout: Option<Duration>, when_up: WhenUp) -> StepDef {
    let kind = StepKind::WaitFor { signal: name.into(), timeout, when_up };
    StepDef { kind, undo: UndoKind::Nothing, ..step(name, after) }
}

fn reserve(name: &str, after: &[&str], ttl: Duration, when_up: WhenUp) -> StepDef {
    StepDef { kind: StepKind::Reserve { ttl, when_up }, ..step(name, after) }
}

const SOON: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(900);

async fn a_signal_is_heard_whenever_it_comes(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let definition =
        saga([step("ask", &[]), wait("yes", &["ask"], Some(LATE), WhenUp::Compensate), step("go", &["yes"])]);
    for early in [true, false] {
        let id = if early { "early" } else { "late" };
        world.will("ask", [Say::Hold]);
        engine.sagas().start_with(definition.clone(), id, json!(1)).await.unwrap();
        let signal =
            || async { engine.sagas().signal(id, "yes", &json!({ "by": "boss" }), Some("boss")).await.unwrap() };
        if early {
            signal().await;
            world.let_go();
        } else {
            world.let_go();
            until(&engine, id, |state| state == SagaState::Waiting).await;
            signal().await;
        }
        assert_eq!(settled(&engine, id).await, SagaState::Succeeded);
    }
    let unknown = engine.sagas().signal("late", "no", &1, None).await.unwrap_err().to_string();
    assert!(unknown.contains("it has ended"), "{unknown}");
    engine.stop().await;
}

async fn a_wait_that_is_not_answered_ends_the_saga(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let nap = StepDef { kind: StepKind::Sleep { time: SOON }, undo: UndoKind::Nothing, ..step("nap", &["ask"]) };
    let definition = saga([step("ask", &[]), nap, wait("yes", &["nap"], Some(SOON), WhenUp::Compensate)]);
    assert_eq!(play(&engine, definition, "t").await, SagaState::Compensated);
    assert_eq!(world.seen(), ["ask", "ask/undo"]);
    engine.stop().await;
}

async fn a_reservation_is_confirmed_when_all_is_done(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let steps = [
        reserve("stock", &[], LATE, WhenUp::Compensate),
        reserve("van", &[], LATE, WhenUp::Compensate),
        step("pay", &["stock", "van"]),
    ];
    assert_eq!(play(&engine, saga(steps.clone()), "t").await, SagaState::Succeeded);
    let seen = world.seen();
    assert_eq!(seen[2], "pay", "{seen:?}");
    let mut confirmed = seen[3..].to_vec();
    confirmed.sort();
    assert_eq!(confirmed, ["stock/confirm", "van/confirm"]);
    // Confirmed once the pivot is done, whatever comes after it.
    let mut with_pivot = saga(steps);
    with_pivot.steps[2].pivot = true;
    with_pivot.steps.push(step("mail", &["pay"]));
    world.will("mail", [Say::Hold]);
    engine.sagas().start_with(with_pivot, "u", json!(1)).await.unwrap();
    world.until_seen("stock/confirm", 2).await;
    world.let_go();
    assert_eq!(settled(&engine, "u").await, SagaState::Succeeded);
    // Not at all if something fails before that.
    world.will("pay", [Say::Refuse]);
    let reserved = saga([reserve("stock", &[], LATE, WhenUp::Compensate), step("pay", &["stock"])]);
    let before = world.seen().len();
    assert_eq!(play(&engine, reserved, "v").await, SagaState::Compensated);
    assert_eq!(world.seen()[before..], ["stock", "pay", "stock/undo"]);
    engine.stop().await;
}

/// Stock is held for a while; unpaid it is released, and the saga is back at the order.
fn shop(hold: Duration) -> Definition {
    let back = || WhenUp::BackTo("order".into());
    saga([
        wait("order", &[], None, WhenUp::Compensate),
        reserve("stock", &["order"], hold, back()),
        wait("paid", &["stock"], None, WhenUp::Compensate),
        step("ship", &["paid"]),
    ])
}

async fn a_reservation_whose_time_is_up_is_released_and_the_saga_begins_anew(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let sagas = engine.sagas();
    sagas.start_with(shop(Duration::from_millis(400)), "t", json!(1)).await.unwrap();
    sagas.signal("t", "order", &json!("a book"), None).await.unwrap();
    world.until_seen("stock/undo", 1).await;
    until(&engine, "t", |state| state == SagaState::Waiting).await;
    sagas.signal("t", "order", &json!("two books"), None).await.unwrap();
    world.until_seen("stock", 2).await;
    sagas.signal("t", "paid", &json!(42), None).await.unwrap();
    assert_eq!(settled(&engine, "t").await, SagaState::Succeeded);
    assert_eq!(
        world.keys(),
        ["t/stock/run", "t/stock/undo", "t/stock#2/run", "t/ship/run", "t/stock#2/confirm"]
            .map(|k| k.replace("ship", "ship#2"))
    );
    engine.stop().await;
}

async fn a_confirmation_that_is_refused_needs_a_person(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("stock/confirm", [Say::Refuse]);
    assert_eq!(play(&engine, saga([reserve("stock", &[], LATE, WhenUp::Compensate)]), "t").await, SagaState::Stuck);
    engine.sagas().retry_now("t", Some("ada"), None).await.unwrap();
    assert_eq!(until(&engine, "t", SagaState::is_final).await, SagaState::Succeeded);
    engine.stop().await;
}

async fn past_its_deadline_a_saga_is_undone(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("flight", [Say::Hang]);
    let late = Definition { deadline: Some(Duration::from_millis(200)), ..trip() };
    assert_eq!(play(&engine, late.clone(), "t").await, SagaState::Compensated);
    assert_eq!(world.seen(), ["hotel", "flight", "flight/undo", "hotel/undo"]);
    // Past the pivot it does not count.
    let mut pivot = late;
    pivot.steps[1].pivot = true;
    world.will(
        "car",
        [
            Say::Ongoing,
            Say::Ongoing,
            Say::Ongoing,
            Say::Ongoing,
            Say::Ongoing,
            Say::Ongoing,
            Say::Ongoing,
            Say::Ongoing,
            Say::Ongoing,
            Say::Ongoing,
            Say::Ongoing,
        ],
    );
    assert_eq!(play(&engine, pivot, "u").await, SagaState::Succeeded);
    engine.stop().await;
}

async fn a_step_has_a_deadline_too(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("flight", [Say::Hang]);
    let mut definition = trip();
    definition.steps[1].deadline = Some(Duration::from_millis(100));
    assert_eq!(play(&engine, definition, "t").await, SagaState::Compensated);
    assert_eq!(world.seen(), ["hotel", "flight", "flight/undo", "hotel/undo"]);
    engine.stop().await;
}

async fn what_a_dead_node_was_waiting_for_is_found(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.another().await).await;
    let definition = saga([wait("yes", &[], Some(SOON), WhenUp::Compensate)]);
    engine.sagas().start_with(definition, "t", json!(1)).await.unwrap();
    engine.stop().await;
    let other = world.engine(&db.store).await;
    assert_eq!(settled(&other, "t").await, SagaState::Failed);
    other.stop().await;
}

/// With a clock of its own a test need not wait for anything.
#[tokio::test]
async fn fifteen_minutes_pass_in_no_time() {
    let world = World::default();
    let runner = world.clone();
    let test = Testing::with(|b| b.saga_runner("go", MethodOptions::default(), runner)).await;
    test.sagas().start_with(shop(Duration::from_secs(900)), "t", Value::Null).await.unwrap();
    test.sagas().signal("t", "order", &"a book", None).await.unwrap();
    test.run_due().await;
    test.advance("14m 59s").await;
    assert_eq!(world.seen(), ["stock"]);
    test.advance("1s").await;
    assert_eq!(world.seen(), ["stock", "stock/undo"]);
    assert_eq!(test.sagas().get("t").await.unwrap().unwrap().summary.state, SagaState::Waiting);
}
