//! Forward, and back.

use redrive::saga::{Compensation, Definition, Event, SagaState, StepDef, UndoKind, With};
use redrive::store::{Fault, Faults, KeyWalk, Retention, SagaFilter};
use redrive::{NewTask, Policy};
use serde_json::json;

use crate::harness::{Db, moment, options, stores};
use crate::script::{Say, World, journal, play, quick, saga, settled, step, trip, until, until_letter};

stores!(
    all_steps_run_once_in_their_order,
    a_refused_step_is_not_undone_but_those_before_it_are_in_reverse,
    a_step_that_is_given_up_is_undone_as_well,
    if_nothing_was_done_it_has_just_failed,
    steps_side_by_side_are_undone_all_at_once_or_by_the_graph,
    source_4_in_parallel_all_are_undone_at_once,
    one_handler_undoes_the_whole,
    what_is_undone_first_is,
    an_irreversible_step_leaves_a_gap,
    past_the_pivot_it_only_goes_forward,
    an_undo_that_is_refused_is_stuck_and_its_letter_brings_it_on,
    under_way_is_no_failure,
    a_start_is_idempotent_by_its_id,
    going_back_stops_what_is_under_way,
    what_had_to_wait_for_its_turn_is_not_begun_when_the_saga_goes_back,
    two_nodes_share_a_saga,
    answers_that_are_lost_change_nothing,
    a_node_that_panics_while_it_writes_journals_leaves_its_sagas_to_others,
    a_stop_does_not_wait_for_a_database_that_is_away,
    what_could_not_be_read_again_is_not_taken,
    sagas_are_listed_and_removed,
    rows_of_the_barrier_outlive_their_saga,
    a_refusal_counts_at_the_first_attempt_only,
    many_at_once,
    what_is_encrypted_cannot_be_read,
    a_result_that_is_no_success_is_tried_again,
    what_was_written_in_the_clear_is_read_with_keys,
);

async fn all_steps_run_once_in_their_order(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("flight", [Say::Fail, Say::Done(json!({ "seat": "4A" }))]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Succeeded);
    assert_eq!(world.seen(), ["hotel", "flight", "flight", "car"]);
    assert_eq!(world.keys()[1..3], ["t/flight/run", "t/flight/run"], "one key for all attempts");
    let journal = journal(&engine, "t").await;
    assert_eq!(journal.len(), 9, "the second attempt of flight is recorded: {journal:#?}");
    let saga = engine.sagas().get("t").await.unwrap().unwrap();
    let steps: Vec<_> = saga.steps().into_iter().map(|step| (step.name, step.run, step.undo)).collect();
    assert_eq!(steps[2], ("car".into(), "done", "idle"));
    let seat = |e: &Event| matches!(e, Event::Done { output, .. } if output["seat"] == "4A");
    assert!(journal.iter().any(seat));
    engine.stop().await;
    assert_eq!((db.count("retry_task").await, db.count("retry_dead").await), (0, 0));
}

async fn a_refused_step_is_not_undone_but_those_before_it_are_in_reverse(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Compensated);
    assert_eq!(world.seen(), ["hotel", "flight", "car", "flight/undo", "hotel/undo"]);
    assert_eq!(world.keys().last().unwrap(), "t/hotel/undo");
    engine.stop().await;
    assert_eq!((db.count("retry_task").await, db.count("retry_dead").await), (0, 0));
}

async fn a_step_that_is_given_up_is_undone_as_well(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("flight", [Say::Fail, Say::Fail, Say::Fail]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Compensated);
    assert_eq!(world.seen(), ["hotel", "flight", "flight", "flight", "flight/undo", "hotel/undo"]);
    world.will("flight", [Say::Unknown]);
    assert_eq!(play(&engine, trip(), "u").await, SagaState::Compensated);
    assert_eq!(world.seen()[6..], ["hotel", "flight", "flight/undo", "hotel/undo"]);
    assert_eq!(db.count("retry_dead").await, 0, "it was undone: nobody need look");
    engine.stop().await;
}

async fn if_nothing_was_done_it_has_just_failed(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("hotel", [Say::Refuse]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Failed);
    let nothing = saga([StepDef { undo: UndoKind::Nothing, ..step("look", &[]) }, step("book", &["look"])]);
    world.will("book", [Say::Refuse]);
    assert_eq!(play(&engine, nothing, "u").await, SagaState::Failed);
    engine.stop().await;
}

fn diamond(compensation: Compensation) -> Definition {
    let steps = [step("a", &[]), step("b", &["a"]), step("c", &["a"]), step("d", &["b", "c"])];
    Definition { compensation, ..saga(steps) }
}

async fn steps_side_by_side_are_undone_all_at_once_or_by_the_graph(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    for (mode, id) in [(Compensation::Graph, "g"), (Compensation::Parallel, "p"), (Compensation::Reverse, "r")] {
        world.will("d", [Say::Unknown]);
        let before = world.seen().len();
        assert_eq!(play(&engine, diamond(mode), id).await, SagaState::Compensated);
        let seen = world.seen().split_off(before);
        let at = |what: &str| seen.iter().position(|s| s == what).unwrap();
        assert_eq!(seen.len(), 8, "{seen:?}");
        if mode != Compensation::Parallel {
            assert!(at("d/undo") < at("b/undo").min(at("c/undo")), "{seen:?}");
            assert!(at("b/undo").max(at("c/undo")) < at("a/undo"), "{seen:?}");
        }
    }
    engine.stop().await;
}

/// Whatever is held goes on, again and again.
async fn keep_letting_go(world: &World) {
    loop {
        world.let_go();
        moment().await;
    }
}

async fn source_4_in_parallel_all_are_undone_at_once(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let undos = ["a/undo", "b/undo", "c/undo"];
    world.will("d", [Say::Refuse]);
    for undo in undos {
        world.will(undo, [Say::Hold]);
    }
    engine.sagas().start_with(diamond(Compensation::Parallel), "t", json!(1)).await.unwrap();
    for undo in undos {
        world.until_seen(undo, 1).await; // none has ended, and all have begun
    }
    let state = tokio::select! {
        state = settled(&engine, "t") => state,
        () = keep_letting_go(&world) => SagaState::Stuck,
    };
    assert_eq!(state, SagaState::Compensated);
    engine.stop().await;
}

async fn one_handler_undoes_the_whole(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]);
    let with = With { method: Some("go".into()), policy: Some(quick()), ..With::default() };
    let definition = Definition { compensate_with: Some(with), ..trip() };
    assert_eq!(play(&engine, definition, "t").await, SagaState::Compensated);
    assert_eq!(world.seen(), ["hotel", "flight", "car", "compensate/undo"]);
    engine.stop().await;
}

async fn what_is_undone_first_is(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]);
    let mut definition = trip();
    definition.steps[0].undo_first = true;
    assert_eq!(play(&engine, definition, "t").await, SagaState::Compensated);
    assert_eq!(world.seen()[3..], ["hotel/undo", "flight/undo"]);
    engine.stop().await;
}

async fn an_irreversible_step_leaves_a_gap(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]);
    let mut definition = trip();
    definition.steps[1].undo = UndoKind::Irreversible;
    assert!(definition.validate().unwrap_err().to_string().contains("steps[1].undo"));
    definition.steps[1].allow_irreversible = true;
    assert_eq!(play(&engine, definition, "t").await, SagaState::CompensatedWithGaps);
    assert_eq!(world.seen()[3..], ["hotel/undo"]);
    engine.stop().await;
}

async fn past_the_pivot_it_only_goes_forward(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let mut definition = trip();
    definition.steps[1].pivot = true;
    definition.steps[1].undo = UndoKind::Irreversible;
    world.will("car", [Say::Refuse]);
    assert_eq!(play(&engine, definition.clone(), "t").await, SagaState::Stuck);
    let conflict = engine.sagas().cancel("t", Some("ada"), None).await.unwrap_err().to_string();
    assert!(conflict.contains("point of no return"), "{conflict}");
    let letters = until_letter(&db).await;
    engine.store().redrive(&letters, None, "ada", engine.store().now().await.unwrap()).await.unwrap();
    engine.wake();
    assert_eq!(until(&engine, "t", SagaState::is_final).await, SagaState::Succeeded);
    assert_eq!(world.seen(), ["hotel", "flight", "car", "car"]);
    // The pivot itself may have happened, and nobody knows: that is for a person, too.
    world.will("flight", [Say::Unknown]);
    assert_eq!(play(&engine, definition.clone(), "u").await, SagaState::Stuck);
    engine.sagas().resolve("u", "flight", json!("it was flown"), Some("ada"), None).await.unwrap();
    assert_eq!(until(&engine, "u", SagaState::is_final).await, SagaState::Succeeded);
    // If it has surely not happened, there is a way back.
    world.will("flight", [Say::Refuse]);
    assert_eq!(play(&engine, definition, "v").await, SagaState::Compensated);
    engine.stop().await;
}

async fn an_undo_that_is_refused_is_stuck_and_its_letter_brings_it_on(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("car", [Say::Refuse]).will("flight/undo", [Say::Refuse]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Stuck);
    assert_eq!(world.seen()[3..], ["flight/undo"], "the others wait");
    // It holds up nobody else.
    assert_eq!(play(&engine, trip(), "other").await, SagaState::Succeeded);
    let letters = until_letter(&db).await;
    assert_eq!(letters.len(), 1);
    engine.store().redrive(&letters, None, "ada", engine.store().now().await.unwrap()).await.unwrap();
    engine.wake();
    assert_eq!(until(&engine, "t", SagaState::is_final).await, SagaState::Compensated);
    let undone: Vec<_> = world.seen().into_iter().filter(|seen| seen.ends_with("undo")).collect();
    assert_eq!(undone, ["flight/undo", "flight/undo", "hotel/undo"]);
    engine.stop().await;
}

async fn under_way_is_no_failure(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    world.will("hotel", (0..6).map(|_| Say::Ongoing));
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Succeeded);
    assert_eq!(world.seen().iter().filter(|seen| *seen == "hotel").count(), 7);
    engine.stop().await;
}

async fn a_start_is_idempotent_by_its_id(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let sagas = engine.sagas();
    let input = json!({ "a": 1, "b": 2 });
    assert!(!sagas.start_with(trip(), "t", input.clone()).await.unwrap().existed);
    assert!(sagas.start_with(trip(), "t", json!({ "b": 2, "a": 1 })).await.unwrap().existed);
    assert_eq!(settled(&engine, "t").await, SagaState::Succeeded);
    assert!(sagas.start_with(trip(), "t", input).await.unwrap().existed, "also when it has ended");
    let other = sagas.start_with(trip(), "t", json!({ "a": 2 })).await.unwrap_err().to_string();
    assert!(other.contains("another name or input"), "{other}");
    let starts = (0..20).map(|n| sagas.start_with(trip(), "at once", json!(n % 2)));
    let answers = futures(starts).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((won.iter().filter(|a| !a.as_ref().unwrap().existed).count(), lost.len()), (1, 10));
    assert_eq!(settled(&engine, "at once").await, SagaState::Succeeded);
    assert_eq!(world.seen().len(), 6);
    engine.stop().await;
}

async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    let mut done: Vec<Option<T>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in all.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(cx) {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

async fn going_back_stops_what_is_under_way(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    // One branch hangs, another waits for its next attempt, a third is refused.
    world.will("hang", [Say::Hang]).will("again", [Say::Fail]).will("no", [Say::Hold]);
    let slow = redrive::Policy { backoff: redrive::Backoff::fixed(std::time::Duration::from_secs(3600)), ..quick() };
    let again = StepDef { policy: Some(slow), ..step("again", &["a"]) };
    let definition = saga([step("a", &[]), step("hang", &["a"]), again, step("no", &["a"])]);
    engine.sagas().start_with(definition, "t", json!(1)).await.unwrap();
    for what in ["hang", "again", "no"] {
        world.until_seen(what, 1).await;
    }
    engine.sagas().cancel("t", Some("ada"), Some("no longer wanted")).await.unwrap();
    world.let_go(); // it is done nonetheless, and is undone
    assert_eq!(settled(&engine, "t").await, SagaState::Compensated);
    let mut undone: Vec<_> = world.seen().into_iter().filter(|seen| seen.ends_with("undo")).collect();
    assert_eq!(undone.pop().as_deref(), Some("a/undo"));
    undone.sort();
    assert_eq!(undone, ["again/undo", "hang/undo", "no/undo"]);
    engine.stop().await;
}

/// The step that waits has its turn as soon as the first is refused, before anybody could stop it.
async fn what_had_to_wait_for_its_turn_is_not_begun_when_the_saga_goes_back(db: Db) {
    let world = World::default();
    let one_at_a_time = redrive::MethodOptions::default().concurrency(1);
    let engine = world.engine_with(&db.store, &["go"], one_at_a_time).await;
    for n in 0..10 {
        world.will("a", [Say::Refuse]).will("b", [Say::Refuse]);
        let seen = world.seen().len();
        let ended = play(&engine, saga([step("a", &[]), step("b", &[])]), &format!("t{n}")).await;
        let ran = world.seen().split_off(seen);
        assert_eq!(
            (ended, ran.len()),
            (SagaState::Failed, 1),
            "nobody has tried the other, so there is nothing to undo: {ran:?}"
        );
    }
    engine.stop().await;
}

async fn two_nodes_share_a_saga(db: Db) {
    let (one, two) = (World::default(), World::default());
    let (store, other) = (db.another().await, db.another().await);
    let (e1, e2) = (one.engine_of(&store, &["go"]).await, two.engine_of(&other, &["there"]).await);
    let mut definition = trip();
    definition.steps[1].method = Some("there".into());
    one.will("car", [Say::Done(json!(1)), Say::Refuse]);
    assert_eq!(play(&e1, definition.clone(), "t").await, SagaState::Succeeded);
    assert_eq!((one.seen(), two.seen()), (vec!["hotel".into(), "car".into()], vec!["flight".to_owned()]));
    assert_eq!(play(&e2, definition, "u").await, SagaState::Compensated);
    assert_eq!(two.seen(), ["flight", "flight", "flight/undo"]);
    e1.stop().await;
    e2.stop().await;
}

async fn answers_that_are_lost_change_nothing(db: Db) {
    let faults = Faults::default();
    let mut options = options();
    options.faults = Some(faults.clone());
    let store = redrive::Store::open_with(&db.url, options).await.unwrap();
    let world = World::default();
    let engine = world.engine(&store).await;
    for round in 0..6 {
        for fault in [Fault::FailAfterCommit, Fault::Disconnect, Fault::FailBefore, Fault::FailAfterCommit] {
            faults.next_write(fault);
        }
        world.will("car", if round % 2 == 0 { vec![] } else { vec![Say::Refuse] });
        let state = play(&engine, trip(), &format!("t{round}")).await;
        assert_eq!(state, if round % 2 == 0 { SagaState::Succeeded } else { SagaState::Compensated });
    }
    assert_eq!(db.count("redrive_saga").await, 6);
    engine.stop().await;
    assert_eq!(db.count("retry_dead").await, 0);
}

/// The steps that it was about to begin are its own in the database, and in nobody's hands.
async fn a_node_that_panics_while_it_writes_journals_leaves_its_sagas_to_others(db: Db) {
    let (world, ms) = (World::default(), std::time::Duration::from_millis);
    let mut config = redrive::EngineConfig::default();
    (config.scan_interval, config.sweep_interval, config.beat_interval) = (ms(100), ms(100), ms(100));
    (config.lease, config.margin, config.grace) = (ms(3_000), ms(1_000), ms(100));
    let builder = || {
        let builder = redrive::Engine::builder(db.store.clone()).config(config.clone());
        builder.saga_runner("go", redrive::MethodOptions::default(), world.clone())
    };
    let broken = builder().journal_hook(|when| assert_ne!(when, "after", "on purpose")).start().await.unwrap();
    assert!(broken.sagas().start_with(trip(), "t", json!({ "who": "Ada" })).await.is_err());
    let other = builder().start().await.unwrap();
    assert_eq!(settled(&other, "t").await, SagaState::Succeeded);
    for engine in [broken, other] {
        engine.stop().await;
    }
}

async fn a_stop_does_not_wait_for_a_database_that_is_away(db: Db) {
    let faults = Faults::default();
    let mut options = options();
    options.faults = Some(faults.clone());
    options.retry_for = std::time::Duration::from_millis(200);
    let store = redrive::Store::open_with(&db.url, options).await.unwrap();
    let mut config = redrive::EngineConfig::default();
    config.grace = std::time::Duration::from_millis(100);
    let builder = redrive::Engine::builder(store).config(config);
    let world = World::default();
    let engine = builder.saga_runner("go", redrive::MethodOptions::default(), world).start().await.unwrap();
    faults.set_down(true);
    let asked = {
        let engine = engine.clone();
        async move { engine.sagas().start_with(trip(), "t", json!(1)).await }
    };
    let asked = tokio::spawn(asked);
    tokio::time::timeout(std::time::Duration::from_secs(60), engine.stop()).await.expect("it stops");
    let e = asked.await.unwrap().unwrap_err();
    assert!(matches!(&e, redrive::Error::Unavailable { why, .. } if why.contains("has stopped")), "{e:?}");
}

async fn what_could_not_be_read_again_is_not_taken(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let deep = |n: usize| (0..n).fold(json!(1), |inner, _| json!([inner]));
    let said = engine.sagas().start_with(trip(), "t", deep(101)).await.unwrap_err().to_string();
    assert!(said.contains("input") && said.contains("nested"), "{said}");
    // What a step answers is not refused, as it was done: it is undone.
    world.will("flight", [Say::Done(deep(101))]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Compensated);
    world.will("flight", [Say::Done(deep(100))]);
    assert_eq!(play(&engine, trip(), "u").await, SagaState::Succeeded);
    assert!(engine.sagas().cancel("t\0", None, None).await.unwrap_err().to_string().contains("no saga"));
    assert_eq!(engine.sagas().get("t\0").await.unwrap(), None);
    engine.stop().await;
}

async fn sagas_are_listed_and_removed(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    for n in 0..5 {
        world.will("car", if n == 0 { vec![Say::Refuse] } else { vec![] });
        play(&engine, trip(), &format!("order-{n}")).await;
    }
    let sagas = engine.sagas();
    let of = |state| SagaFilter { state: Some(state), ..SagaFilter::default() };
    assert_eq!(sagas.list(&of(SagaState::Compensated), 10).await.unwrap()[0].id, "order-0");
    let mut seen = Vec::new();
    let mut filter = SagaFilter::default();
    loop {
        let page = sagas.list(&filter, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        filter = filter.page_after(last);
        seen.extend(page.into_iter().map(|saga| saga.id));
    }
    seen.sort();
    assert_eq!(seen, ["order-0", "order-1", "order-2", "order-3", "order-4"]);
    let named = SagaFilter { name: Some("trip".into()), id_prefix: Some("order-3".into()), ..SagaFilter::default() };
    assert_eq!(sagas.list(&named, 10).await.unwrap().len(), 1);
    let now = engine.store().now().await.unwrap();
    assert_eq!(engine.store().remove_sagas(now + std::time::Duration::from_secs(60), 100).await.unwrap(), 5);
    assert_eq!((db.count("redrive_saga").await, db.count("redrive_saga_event").await), (0, 0));
    engine.stop().await;
}

async fn rows_of_the_barrier_outlive_their_saga(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    assert_eq!(play(&engine, trip(), "ended").await, SagaState::Succeeded);
    world.will("car", [Say::Refuse]).will("flight/undo", [Say::Refuse]);
    assert_eq!(play(&engine, trip(), "stuck").await, SagaState::Stuck);
    for id in ["stuck", "ended", "elsewhere"] {
        let row = format!("VALUES ('{id}', 'hotel', 'run', 'run', 1)");
        db.sql(&format!("INSERT INTO redrive_barrier (saga_id, step, op, written_by, created_at) {row}")).await;
    }
    let now = db.store.now().await.unwrap();
    let swept = db.store.sweep_old(&Retention::default(), &mut KeyWalk::default(), now).await.unwrap();
    assert_eq!((swept.barriers, db.count("redrive_barrier").await), (2, 1));
    assert_eq!(db.sql("SELECT COUNT(*) FROM redrive_barrier WHERE saga_id = 'stuck'").await, Some(1));
    engine.stop().await;
}

async fn a_refusal_counts_at_the_first_attempt_only(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    // The first one may have booked, and its answer was lost.
    world.will("car", [Say::Fail, Say::Refuse]);
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Compensated);
    assert_eq!(world.seen()[4..], ["car/undo", "flight/undo", "hotel/undo"]);
    world.will("car", [Say::Ongoing, Say::Refuse]);
    assert_eq!(play(&engine, trip(), "u").await, SagaState::Compensated);
    assert_eq!(world.seen()[11..], ["car/undo", "flight/undo", "hotel/undo"]);
    // It was given up, and is refused when a person has it tried again: it may still have happened.
    let mut pivot = trip();
    (pivot.steps[2].pivot, pivot.steps[2].undo) = (true, UndoKind::Irreversible);
    world.will("car", [Say::Unknown, Say::Refuse]);
    assert_eq!(play(&engine, pivot, "v").await, SagaState::Stuck);
    engine.sagas().forward("v", None, Some("ada"), None).await.unwrap();
    world.until_seen("car", 6).await;
    assert_eq!(settled(&engine, "v").await, SagaState::Stuck);
    let saga = engine.sagas().get("v").await.unwrap().unwrap();
    assert_eq!(saga.steps()[2].run, "unknown");
    engine.stop().await;
}

async fn many_at_once(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let sagas = engine.sagas();
    futures((0..200).map(|n| async move { sagas.start_with(trip(), &format!("t{n}"), json!(n)).await.unwrap() })).await;
    for n in 0..200 {
        assert_eq!(settled(&engine, &format!("t{n}")).await, SagaState::Succeeded);
    }
    assert_eq!(world.seen().len(), 600);
    // Tasks of other kinds are not in the way.
    assert!(engine.enqueue(NewTask::new("nobody", &1).unwrap()).await.is_ok());
    engine.stop().await;
}

async fn what_was_written_in_the_clear_is_read_with_keys(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    engine.sagas().start_with(trip(), "t", json!("4711")).await.unwrap();
    let ended = settled(&engine, "t").await;
    engine.stop().await;
    let mut options = options();
    options.keyring = Some(redrive::Keyring::new("k", [7; 32]).unwrap().encrypt_all());
    let read = redrive::Store::open_with(&db.url, options).await.unwrap().saga("t").await.unwrap().unwrap();
    assert_eq!((read.summary.state, read.definition, read.input), (ended, trip(), json!("4711")));
}

async fn what_is_encrypted_cannot_be_read(db: Db) {
    let mut options = options();
    options.keyring = Some(redrive::Keyring::new("k", [7; 32]).unwrap().encrypt_all());
    let store = redrive::Store::open_with(&db.url, options).await.unwrap();
    let world = World::default();
    let engine = world.engine(&store).await;
    world.will("hotel", [Say::Done(json!("4242"))]).will("flight", [Say::Fail, Say::Fail, Say::Fail]);
    engine.sagas().start_with(trip(), "t", json!("4711")).await.unwrap();
    assert_eq!(settled(&engine, "t").await, SagaState::Compensated);
    engine.stop().await;
    assert_eq!(store.saga("t").await.unwrap().unwrap().definition, trip(), "read as it was");
    let plain = "SELECT COUNT(*) FROM redrive_saga WHERE definition LIKE '%hotel%' OR definition NOT LIKE '\"redrive:aes256gcm:k:%'";
    assert_eq!(db.sql(plain).await, Some(0), "requests have secrets in them, too");
    for (table, column) in [("redrive_saga_event", "event"), ("redrive_saga", "input")] {
        // Sealed text is base64: it has no quotes within.
        let plain = format!(
            "SELECT COUNT(*) FROM {table} WHERE {column} LIKE '%\"42%' OR {column} LIKE '%\"what%' OR {column} LIKE '\"47%'"
        );
        assert_eq!(db.sql(&plain).await, Some(0), "{table}");
    }
    assert!(db.store.saga("t").await.unwrap_err().to_string().contains("does not have"), "without the key");
}

async fn a_result_that_is_no_success_is_tried_again(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let answer = |state: &str| Say::Done(json!({ "status": 200, "body": { "state": state } }));
    let mut definition = trip();
    for (step, condition) in definition.steps.iter_mut().zip(["body.state == 'paid'", "result.body.state == 'paid'"]) {
        let only_timeouts = vec!["timeout".into()]; // the lists are about errors
        let policy = Policy { success_if: Some(condition.into()), retry_for: only_timeouts, ..quick() };
        step.policy = Some(policy);
    }
    world.will("hotel", [answer("pending"), answer("paid")]).will("flight", [answer("pending"), answer("paid")]);
    assert_eq!(play(&engine, definition.clone(), "t").await, SagaState::Succeeded);
    assert_eq!(world.seen(), ["hotel", "hotel", "flight", "flight", "car"]);
    let kept = |e: &Event| matches!(e, Event::Done { output, .. } if output["body"]["state"] == "pending");
    assert!(!journal(&engine, "t").await.iter().any(kept));
    // It may have had an effect: when it is given up it is undone. Of an undo nothing is asked.
    world.will("hotel", [answer("paid")]).will("flight", [answer("no"), answer("no"), answer("no")]);
    definition.steps[0].undo_policy.as_mut().unwrap().success_if = Some("false".into());
    assert_eq!(play(&engine, definition, "u").await, SagaState::Compensated);
    assert_eq!(world.seen()[5..], ["hotel", "flight", "flight", "flight", "flight/undo", "hotel/undo"]);
    engine.stop().await;
}
