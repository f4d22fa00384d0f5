//! Sagas that begin in the caller's own transaction.

use redrive::saga::SagaState;
use serde_json::json;

use crate::harness::{Db, Raw, stores};
use crate::script::{World, play, saga, settled, step, trip};

stores!(
    what_is_rolled_back_never_began,
    what_is_committed_runs,
    what_is_there_already_is_found_or_is_a_conflict,
    two_transactions_start_one_saga,
    a_saga_that_begins_with_a_wait_is_looked_at_in_time,
);

async fn what_is_rolled_back_never_began(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let mut tx = db.store.begin().await.unwrap();
    let started = engine.sagas().start_with_in(&mut tx, trip(), "t", json!(1)).await.unwrap();
    assert!(!started.existed);
    drop(tx);
    assert_eq!(engine.sagas().get("t").await.unwrap(), None);
    for table in ["redrive_saga", "redrive_saga_event", "retry_task"] {
        assert_eq!(db.count(table).await, 0, "{table}");
    }
    // The id is free.
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Succeeded);
    engine.stop().await;
}

async fn what_is_committed_runs(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let (sagas, side_by_side) = (engine.sagas(), saga([step("a", &[]), step("b", &[]), step("c", &["a", "b"])]));
    let started = engine
        .transaction(async |tx| {
            let one = sagas.start_with_in(&mut *tx, side_by_side, "t", json!({ "who": "Ada" })).await?;
            sagas.start_with_in(tx, trip(), "u", json!(2)).await?;
            assert!(world.seen().is_empty(), "nothing begins before the commit");
            Ok(one)
        })
        .await
        .unwrap();
    assert_eq!((started.id.as_str(), started.existed), ("t", false));
    for id in ["t", "u"] {
        assert_eq!(settled(&engine, id).await, SagaState::Succeeded);
    }
    let mut seen = world.seen();
    seen.sort();
    assert_eq!(seen, ["a", "b", "c", "car", "flight", "hotel"]);
    engine.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn what_is_there_already_is_found_or_is_a_conflict(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    assert_eq!(play(&engine, trip(), "t").await, SagaState::Succeeded);
    let mut tx = db.store.begin().await.unwrap();
    let sagas = engine.sagas();
    assert!(sagas.start_with_in(&mut tx, trip(), "t", json!({ "who": "Ada" })).await.unwrap().existed);
    let other = sagas.start_with_in(&mut tx, trip(), "t", json!({ "who": "Eve" })).await.unwrap_err().to_string();
    assert!(other.contains("another name or input"), "{other}");
    // Twice in one transaction is once.
    assert!(!sagas.start_with_in(&mut tx, trip(), "u", json!(1)).await.unwrap().existed);
    assert!(sagas.start_with_in(&mut tx, trip(), "u", json!(1)).await.unwrap().existed);
    tx.commit().await.unwrap();
    engine.wake();
    assert_eq!(settled(&engine, "u").await, SagaState::Succeeded);
    assert_eq!(world.seen().len(), 6);
    engine.stop().await;
}

/// The second waits for the first, and then sees what it could not see when it began.
async fn two_transactions_start_one_saga(db: Db) {
    let world = World::default();
    let engine = world.engine(&db.store).await;
    for (id, strict) in [("t", false), ("u", true)] {
        let (mut one, mut two) = (Raw::connect(&db).await, Raw::connect(&db).await);
        let strict = two.snapshot_isolation(strict).await && strict;
        one.sql("BEGIN").await.unwrap();
        two.sql("BEGIN").await.unwrap();
        two.sql("SELECT COUNT(*) FROM redrive_node").await.unwrap();
        engine.sagas().start_with_in(one.connection(), trip(), id, json!(1)).await.unwrap();
        one.sql("COMMIT").await.unwrap();
        let second = engine.sagas().start_with_in(two.connection(), trip(), id, json!(1)).await;
        match second {
            Ok(second) => assert!(second.existed && !strict),
            // On SQLite nobody writes by what he saw before others did.
            Err(e) if db.url.starts_with("sqlite") => assert!(e.to_string().contains("locked"), "{e}"),
            Err(e) => assert!(strict && e.is_transient(), "{e}"),
        }
        two.sql("ROLLBACK").await.unwrap();
        two.sql("BEGIN").await.unwrap();
        let again = engine.sagas().start_with_in(two.connection(), trip(), id, json!(1)).await.unwrap();
        assert!(again.existed);
        two.sql("COMMIT").await.unwrap();
        engine.wake();
        assert_eq!(settled(&engine, id).await, SagaState::Succeeded);
    }
    assert_eq!(world.seen(), ["hotel", "flight", "car"].repeat(2));
    engine.stop().await;
}

async fn a_saga_that_begins_with_a_wait_is_looked_at_in_time(db: Db) {
    use redrive::saga::{StepDef, StepKind, UndoKind};
    let world = World::default();
    let engine = world.engine(&db.store).await;
    let nap = StepKind::Sleep { time: std::time::Duration::from_millis(300) };
    let nap = StepDef { kind: nap, undo: UndoKind::Nothing, ..step("nap", &[]) };
    let sagas = engine.sagas();
    let definition = saga([nap, step("go", &["nap"])]);
    engine.transaction(async |tx| sagas.start_with_in(tx, definition, "t", json!(1)).await).await.unwrap();
    assert_eq!(settled(&engine, "t").await, SagaState::Succeeded);
    engine.stop().await;
}
