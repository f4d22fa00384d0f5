//! Waits, reservations, deadlines.

use std::time::Duration;

use redrive::saga::{Definition, Event, SagaState, StepDef, StepKind, UndoKind, WhenUp};
use redrive::store::{AuditFilter, Fault, Faults, Registration};
use redrive::testing::Testing;
use redrive::{Clock, Engine, EngineConfig, MethodOptions};
use serde_json::{Value, json};

use crate::harness::{Db, Kind, Raw, options, stores};
use crate::script::{Say, World, journal, play, quick, saga, settled, step, trip, until};

stores!(
    a_signal_is_heard_whenever_it_comes,
    a_wait_that_is_not_answered_ends_the_saga,
    a_reservation_is_confirmed_when_all_is_done,
    a_reservation_whose_time_is_up_is_released_and_the_saga_begins_anew,
    what_is_beside_the_steps_that_begin_anew_goes_on,
    a_confirmation_that_is_refused_needs_a_person,
    past_its_deadline_a_saga_is_undone,
    a_step_has_a_deadline_too,
    what_a_dead_node_was_waiting_for_is_found,
    the_times_of_a_dead_node_are_taken_over_when_it_is_declared_dead,
    a_signal_with_a_key_counts_once,
    the_same_signal_from_many_at_once_counts_once,
    a_signal_is_in_the_audit_but_not_what_it_said,
    a_signal_that_comes_with_the_start_does_not_harm_it,
    a_signal_that_nobody_will_hear_is_a_conflict,
    a_saga_that_somebody_holds_keeps_no_other_from_its_time,
    a_signal_whose_answer_is_lost_is_heard_once,
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
    let (engine, clock) = world.engine_and_clock(&db.store).await;
    let sagas = engine.sagas();
    sagas.start_with(shop(LATE), "t", json!(1)).await.unwrap();
    sagas.signal("t", "order", &json!("a book"), None).await.unwrap();
    world.until_seen("stock", 1).await;
    until(&engine, "t", |state| state == SagaState::Waiting).await;
    clock.advance(LATE);
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

async fn what_is_beside_the_steps_that_begin_anew_goes_on(db: Db) {
    let world = World::default();
    let (engine, clock) = world.engine_and_clock(&db.store).await;
    world.will("slow", [Say::Fail]).will("stock/undo", [Say::Hold]);
    let later = redrive::Policy { backoff: redrive::Backoff::fixed(LATE * 4), ..quick() };
    let slow = StepDef { policy: Some(later), ..step("slow", &[]) };
    let stock = reserve("stock", &[], LATE, WhenUp::BackTo("stock".into()));
    let definition = saga([slow, stock, step("ship", &["slow", "stock"])]);
    engine.sagas().start_with(definition, "t", json!(1)).await.unwrap();
    world.until_seen("slow", 1).await;
    let has_stock = || async { engine.sagas().get("t").await.unwrap().unwrap().steps()[1].run == "done" };
    while !has_stock().await {}
    clock.advance(LATE);
    world.until_seen("stock/undo", 1).await;
    let mut tried = 0;
    for _ in 0..1_000 {
        tried += engine.sagas().retry_now("t", None, None).await.unwrap();
        if tried > 0 {
            break; // its failure was written
        }
    }
    world.until_seen("slow", 2).await;
    world.let_go();
    assert_eq!(settled(&engine, "t").await, SagaState::Succeeded);
    assert!(!world.seen().contains(&"slow/undo".into()), "{:?}", world.seen());
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
    let (engine, clock) = world.engine_and_clock(&db.store).await;
    world.will("flight", [Say::Hang]);
    let late = Definition { deadline: Some(LATE), ..trip() };
    engine.sagas().start_with(late.clone(), "t", json!(1)).await.unwrap();
    world.until_seen("flight", 1).await;
    clock.advance(LATE);
    assert_eq!(settled(&engine, "t").await, SagaState::Compensated);
    assert_eq!(world.seen(), ["hotel", "flight", "flight/undo", "hotel/undo"]);
    // Past the pivot it does not count.
    let mut pivot = late.clone();
    pivot.steps[1].pivot = true;
    world.will("car", [Say::Hold]);
    engine.sagas().start_with(pivot, "u", json!(1)).await.unwrap();
    world.until_seen("car", 1).await;
    let after = saga([wait("yes", &[], Some(LATE), WhenUp::Compensate)]);
    engine.sagas().start_with(after, "v", json!(1)).await.unwrap();
    clock.advance(LATE);
    assert_eq!(settled(&engine, "v").await, SagaState::Failed, "its time was up later than that of the other one");
    world.let_go();
    assert_eq!(settled(&engine, "u").await, SagaState::Succeeded);
    engine.stop().await;
}

/// It is a time limit of the attempt, too, and that goes by the real time.
async fn a_step_has_a_deadline_too(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("flight", [Say::Hang]);
    let mut definition = trip();
    definition.steps[1].deadline = Some(Duration::from_secs(3)); // far enough away for it to begin on a busy machine
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

/// Who looks at the times for all has died, with a lock in its hands. The clock stands still, so that lock does not expire.
async fn the_times_of_a_dead_node_are_taken_over_when_it_is_declared_dead(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.another().await).await;
    let definition = saga([wait("yes", &[], Some(LATE), WhenUp::Compensate)]);
    engine.sagas().start_with(definition, "t", json!(1)).await.unwrap();
    let now = engine.store().now().await.unwrap() + LATE + Duration::from_secs(60);
    engine.stop().await;

    let dead = Registration { name: "killed".into(), methods: vec!["go".into()], ..Registration::default() };
    let dead = db.store.register(&dead, now).await.unwrap();
    assert!(db.store.lock("sagas", &dead.to_string(), LATE, now).await.unwrap().is_some());
    let mut quick = EngineConfig::default();
    (quick.beat_interval, quick.lease, quick.margin) =
        (Duration::from_millis(200), Duration::from_secs(2), Duration::from_millis(400));
    let other = Engine::builder(db.another().await)
        .config(quick)
        .clock(Clock::manual(now))
        .saga_runner("go", MethodOptions::default(), world.clone())
        .start()
        .await
        .unwrap();
    assert_eq!(settled(&other, "t").await, SagaState::Failed);
    other.stop().await;
}

/// Two steps that wait for the same signal, one after the other.
fn twice() -> Definition {
    let kind = || StepKind::WaitFor { signal: "yes".into(), timeout: None, when_up: WhenUp::Compensate };
    let waits = |name, after: &[&str]| StepDef { kind: kind(), undo: UndoKind::Nothing, ..step(name, after) };
    saga([waits("first", &[]), waits("second", &["first"])])
}

async fn a_signal_with_a_key_counts_once(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let sagas = engine.sagas();
    sagas.start_with(twice(), "t", json!(1)).await.unwrap();
    let send = async |key, n| sagas.signal_once("t", key, "yes", &json!({ "n": n, "m": 0 }), Some("shop")).await;
    assert!(send("k1", 1).await.unwrap());
    assert!(!send("k1", 1).await.unwrap(), "accepted as before");
    let other = send("k1", 2).await.unwrap_err().to_string();
    assert!(other.contains("another signal was sent under this key"), "{other}");
    let saga = sagas.get("t").await.unwrap().unwrap();
    assert_eq!((saga.summary.state, saga.steps()[1].run), (SagaState::Waiting, "started"));
    assert!(send("k2", 1).await.unwrap());
    assert_eq!(settled(&engine, "t").await, SagaState::Succeeded);
    // Whoever has not heard the answer asks again, whatever has become of the saga, on whichever node.
    let (another, elsewhere) = (World::default(), db.another().await);
    let node = another.engine(&elsewhere).await;
    assert!(!node.sagas().signal_once("t", "k2", "yes", &json!({ "m": 0, "n": 1 }), None).await.unwrap());
    let ended = send("k3", 1).await.unwrap_err().to_string();
    assert!(ended.contains("it has ended"), "{ended}");
    for key in ["", "a\0b", &"k".repeat(256)] {
        assert!(sagas.signal_once("t", key, "yes", &1, None).await.unwrap_err().to_string().contains("key"), "{key:?}");
    }
    node.stop().await;
    engine.stop().await;
}

async fn the_same_signal_from_many_at_once_counts_once(db: Db) {
    let (one, two) = (World::default(), World::default());
    let (store, other) = (db.another().await, db.another().await);
    let (e1, e2) = (one.engine(&store).await, two.engine(&other).await);
    e1.sagas().start_with(twice(), "t", json!(1)).await.unwrap();
    let send = |n: usize| {
        let engine = if n.is_multiple_of(2) { e1.clone() } else { e2.clone() };
        async move { engine.sagas().signal_once("t", "k", "yes", &1, None).await.unwrap() }
    };
    let mut all = tokio::task::JoinSet::new();
    (0..20).for_each(|n| _ = all.spawn(send(n)));
    assert_eq!(all.join_all().await.into_iter().filter(|is_new| *is_new).count(), 1);
    assert_eq!(e1.sagas().get("t").await.unwrap().unwrap().summary.state, SagaState::Waiting);
    e1.stop().await;
    e2.stop().await;
}

async fn a_signal_is_in_the_audit_but_not_what_it_said(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let sagas = engine.sagas();
    sagas.start_with(twice(), "t", json!(1)).await.unwrap();
    sagas.signal_once("t", "k", "yes", &json!({ "card": "4711" }), Some("boss")).await.unwrap();
    sagas.signal_once("t", "k", "yes", &json!({ "card": "4711" }), Some("boss")).await.unwrap();
    sagas.signal("t", "yes", &json!("by a program"), None).await.unwrap();
    let audits = db.store.audits(&AuditFilter::default(), 10).await.unwrap();
    let [audit] = audits.as_slice() else { panic!("one for what came of it: {audits:?}") };
    let entry = &audit.entry;
    assert_eq!((&*entry.who, &*entry.action, &*entry.target), ("boss", "saga.signal", "t"));
    assert_eq!(entry.after, Some(json!({ "signal": "yes", "payload_bytes": 15, "key": "k" })));
    engine.stop().await;
}

async fn a_signal_that_comes_with_the_start_does_not_harm_it(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let sagas = engine.sagas();
    for n in 0..30 {
        let id = format!("t{n}");
        let (told, started) =
            tokio::join!(sagas.signal(&id, "yes", &1, None), sagas.start_with(twice(), &id, json!(1)));
        assert!(!started.unwrap().existed);
        if let Err(e) = told {
            assert!(e.to_string().contains("no saga"), "it was not there yet: {e}");
        }
    }
    engine.stop().await;
}

async fn a_signal_that_nobody_will_hear_is_a_conflict(db: Db) {
    let world = World::default();
    let (engine, clock) = world.engine_and_clock(&db.store).await;
    let sagas = engine.sagas();
    world.will("stock/undo", [Say::Hold, Say::Hold]);
    sagas.start_with(shop(LATE), "t", json!(1)).await.unwrap();
    sagas.signal_once("t", "k", "order", &json!("a book"), None).await.unwrap();
    world.until_seen("stock", 1).await;
    until(&engine, "t", |state| state == SagaState::Waiting).await;
    clock.advance(LATE);
    world.until_seen("stock/undo", 1).await;
    let refused = async |signal| sagas.signal("t", signal, &json!(42), None).await.unwrap_err().to_string();
    for signal in ["order", "paid"] {
        let said = refused(signal).await;
        assert!(said.contains("it goes back"), "{said}");
    }
    assert!(!sagas.signal_once("t", "k", "order", &json!("a book"), None).await.unwrap(), "it was heard before");
    let unknown = refused("sent").await;
    assert!(unknown.contains("no step waits for"), "{unknown}");
    world.let_go();
    until(&engine, "t", |state| state == SagaState::Waiting).await;
    sagas.signal("t", "order", &json!("two books"), None).await.unwrap();
    world.until_seen("stock", 2).await;
    sagas.cancel("t", Some("ada"), None).await.unwrap();
    assert!(refused("paid").await.contains("it goes back"));
    world.let_go();
    assert_eq!(settled(&engine, "t").await, SagaState::Compensated);
    engine.stop().await;
}

async fn a_saga_that_somebody_holds_keeps_no_other_from_its_time(db: Db) {
    if db.kind == Kind::Sqlite {
        return; // who writes there holds the whole file
    }
    let world = World::default();
    let (engine, clock) = world.engine_and_clock(&db.store).await;
    let waits = || saga([wait("yes", &[], Some(SOON * 10), WhenUp::Compensate)]);
    let start = async |id| engine.sagas().start_with(waits(), id, json!(1)).await.unwrap();
    let mut raw = Raw::connect(&db).await;
    start("held").await;
    raw.begin().await;
    raw.sql("UPDATE redrive_saga SET version = version + 1 WHERE id = 'held'").await.unwrap();
    for id in ["first", "second", "third"] {
        start(id).await;
        clock.advance(Duration::from_secs(10)); // the table is looked into as well
        assert_eq!(settled(&engine, id).await, SagaState::Failed);
    }
    raw.commit().await;
    assert_eq!(settled(&engine, "held").await, SagaState::Failed);
    engine.stop().await;
}

/// Before it is tried again, another node writes to the saga.
async fn a_signal_whose_answer_is_lost_is_heard_once(db: Db) {
    let (faults, mut options) = (Faults::default(), options());
    options.faults = Some(faults.clone());
    let (here, there) = (World::default(), World::default());
    let engine = here.engine(&redrive::Store::open_with(&db.url, options).await.unwrap()).await;
    let other = there.engine_of(&db.another().await, &["elsewhere"]).await;
    here.will("ask", [Say::Hold]);
    let definition = saga([step("ask", &[]), wait("yes", &["ask"], None, WhenUp::Compensate)]);
    engine.sagas().start_with(definition, "t", json!(1)).await.unwrap();
    here.until_seen("ask", 1).await;
    let heard = async || {
        let journal = journal(&other, "t").await;
        journal.iter().filter(|event| matches!(event, Event::Signal { .. })).count()
    };
    for n in 1..=3 {
        faults.next_write(Fault::FailAfterCommit);
        faults.next_write(Fault::Delay(SOON * 10)); // before the second try
        let signal = async || engine.sagas().signal("t", "yes", &json!(n), None).await.unwrap();
        let meanwhile = async || {
            while heard().await < n {}
            other.sagas().edit_input("t", json!(n), Some("ada"), None).await.unwrap();
        };
        tokio::join!(signal(), meanwhile());
        assert_eq!(heard().await, n);
    }
    here.let_go();
    assert_eq!(settled(&other, "t").await, SagaState::Succeeded);
    engine.stop().await;
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
