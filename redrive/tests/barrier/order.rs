//! One call after the other: what each is told.

use redrive::barrier::{BarrierKey, Op};
use serde_json::json;

use crate::harness::*;
use crate::party::*;

stores!(
    a_run_proceeds_once_and_its_result_is_told_again,
    an_undo_after_its_run_proceeds_once,
    an_undo_without_a_run_is_null_and_a_late_run_dangles,
    a_run_that_was_rolled_back_never_was,
    a_null_undo_that_was_rolled_back_never_was,
    a_confirmed_reservation_cannot_be_cancelled,
    a_cancelled_reservation_cannot_be_confirmed,
    a_confirm_without_a_reservation_dangles_and_shuts_the_step,
    other_steps_and_sagas_are_others,
    a_result_is_kept_only_in_the_transaction_that_entered,
    a_result_may_be_anything_or_nothing,
);

async fn a_run_proceeds_once_and_its_result_is_told_again(db: Db) {
    assert_eq!(done(&db, Op::Run).await, Said::Proceed);
    assert_eq!(done(&db, Op::Run).await, duplicate(Op::Run));
    assert_eq!(done(&db, Op::Run).await, duplicate(Op::Run));
    assert_eq!(db.count("redrive_barrier").await, 1);
}

async fn an_undo_after_its_run_proceeds_once(db: Db) {
    assert_eq!(done(&db, Op::Run).await, Said::Proceed);
    assert_eq!(done(&db, Op::Undo).await, Said::Proceed);
    assert_eq!(done(&db, Op::Undo).await, duplicate(Op::Undo));
    assert_eq!(done(&db, Op::Run).await, duplicate(Op::Run), "it ran, so it does not run again");
}

async fn an_undo_without_a_run_is_null_and_a_late_run_dangles(db: Db) {
    assert_eq!(done(&db, Op::Undo).await, Said::NullUndo);
    assert_eq!(done(&db, Op::Undo).await, Said::NullUndo, "the same answer to the same question");
    assert_eq!(done(&db, Op::Run).await, Said::Dangling);
    assert_eq!(done(&db, Op::Run).await, Said::Dangling);
}

async fn a_run_that_was_rolled_back_never_was(db: Db) {
    let mut party = Party::begun(&db).await;
    assert_eq!(party.enter(&key(Op::Run)).await, Said::Proceed);
    party.roll_back().await;
    assert_eq!(done(&db, Op::Undo).await, Said::NullUndo);
}

async fn a_null_undo_that_was_rolled_back_never_was(db: Db) {
    let mut party = Party::begun(&db).await;
    assert_eq!(party.enter(&key(Op::Undo)).await, Said::NullUndo);
    party.roll_back().await;
    assert_eq!(done(&db, Op::Run).await, Said::Proceed);
}

async fn a_confirmed_reservation_cannot_be_cancelled(db: Db) {
    assert_eq!(done(&db, Op::Run).await, Said::Proceed);
    assert_eq!(done(&db, Op::Confirm).await, Said::Proceed);
    assert_eq!(done(&db, Op::Confirm).await, duplicate(Op::Confirm));
    assert_eq!(done(&db, Op::Undo).await, Said::Dangling);
    assert_eq!(done(&db, Op::Confirm).await, duplicate(Op::Confirm), "the vain cancel changed nothing");
}

async fn a_cancelled_reservation_cannot_be_confirmed(db: Db) {
    assert_eq!(done(&db, Op::Run).await, Said::Proceed);
    assert_eq!(done(&db, Op::Undo).await, Said::Proceed);
    assert_eq!(done(&db, Op::Confirm).await, Said::Dangling);
    assert_eq!(done(&db, Op::Undo).await, duplicate(Op::Undo), "the vain confirm changed nothing");
}

async fn a_confirm_without_a_reservation_dangles_and_shuts_the_step(db: Db) {
    assert_eq!(done(&db, Op::Confirm).await, Said::Dangling);
    assert_eq!(done(&db, Op::Run).await, Said::Dangling);
    assert_eq!(done(&db, Op::Undo).await, Said::NullUndo, "there is nothing to undo");
    assert_eq!(done(&db, Op::Confirm).await, Said::Dangling);
}

async fn other_steps_and_sagas_are_others(db: Db) {
    let keys = [
        ("order-7", "charge"),
        ("order-7", "ship"),
        ("order-8", "charge"),
        ("Order-7", "charge"),
        ("órder-7", "charge"),
    ];
    for (saga, step) in keys {
        let mut party = Party::begun(&db).await;
        assert_eq!(party.enter(&BarrierKey::new(saga, step, Op::Run)).await, Said::Proceed, "{saga} {step}");
        party.commit().await;
    }
    let longest = BarrierKey::new("☃".repeat(255), "é".repeat(100), Op::Undo);
    let mut party = Party::begun(&db).await;
    assert_eq!(party.enter(&longest).await, Said::NullUndo);
    party.commit().await;
    let mut party = Party::begun(&db).await;
    let longer = BarrierKey::new("x".repeat(256), "é".repeat(101), Op::Run);
    let said = party.try_enter(&longer).await.unwrap_err().to_string();
    assert_eq!(said, "saga_id: must have from 1 to 255 characters; step: must have from 1 to 100 characters");
    assert_eq!(party.enter(&key(Op::Undo)).await, Said::Proceed, "the transaction is still good");
}

async fn a_result_is_kept_only_in_the_transaction_that_entered(db: Db) {
    let mut party = Party::begun(&db).await;
    let redrive::barrier::Entered::Proceed(entry) = party.try_enter(&key(Op::Run)).await.unwrap() else { panic!() };
    party.raw.sql("ROLLBACK").await.unwrap();
    let said = entry.keep(party.raw.connection(), &1).await.unwrap_err().to_string();
    assert!(said.contains("has ended"), "{said}");
}

async fn a_result_may_be_anything_or_nothing(db: Db) {
    for (n, result) in [json!(null), json!("a\u{0}b 'quoted' ☃"), json!([1, {"deep": {}}]), json!("x".repeat(100_000))]
        .iter()
        .enumerate()
    {
        let key = BarrierKey::new("s", n.to_string(), Op::Run);
        let mut party = Party::begun(&db).await;
        assert_eq!(party.enter_keeping(&key, result.clone()).await.unwrap(), Said::Proceed);
        party.commit().await;
        let mut party = Party::begun(&db).await;
        assert_eq!(party.enter(&key).await, Said::Duplicate(Some(result.clone())));
    }
    let mut party = Party::begun(&db).await;
    _ = party.try_enter(&key(Op::Run)).await.unwrap(); // keeps nothing
    party.commit().await;
    assert_eq!(done(&db, Op::Run).await, Said::Duplicate(None));
}
