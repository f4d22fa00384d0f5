//! Two calls at once: the second waits for the end of the first, and is told what is right then.

use redrive::barrier::Op;

use crate::harness::*;
use crate::party::*;

stores!(
    of_two_runs_at_once_the_second_waits_and_gets_the_firsts_result,
    of_two_runs_at_once_the_second_proceeds_if_the_first_rolls_back,
    an_undo_waits_for_its_run_and_undoes_it,
    an_undo_waits_for_its_run_and_is_null_if_that_rolls_back,
    a_run_waits_for_the_undo_that_overtook_it_and_dangles,
    a_run_waits_for_the_undo_that_overtook_it_and_proceeds_if_that_rolls_back,
    of_two_undos_at_once_one_proceeds,
    of_confirm_and_cancel_at_once_the_first_counts,
);

async fn begun_with(db: &Db, op: Op, said: Said) -> Party {
    let mut party = Party::begun(db).await;
    assert_eq!(party.enter(&key(op)).await, said);
    party
}

async fn of_two_runs_at_once_the_second_waits_and_gets_the_firsts_result(db: Db) {
    let first = begun_with(&db, Op::Run, Said::Proceed).await;
    let second = beside(&db, Op::Run).await;
    first.commit().await;
    assert_eq!(second.await.unwrap(), duplicate(Op::Run));
}

async fn of_two_runs_at_once_the_second_proceeds_if_the_first_rolls_back(db: Db) {
    let first = begun_with(&db, Op::Run, Said::Proceed).await;
    let second = beside(&db, Op::Run).await;
    first.roll_back().await;
    assert_eq!(second.await.unwrap(), Said::Proceed);
    assert_eq!(done(&db, Op::Run).await, duplicate(Op::Run));
}

async fn an_undo_waits_for_its_run_and_undoes_it(db: Db) {
    let run = begun_with(&db, Op::Run, Said::Proceed).await;
    let undo = beside(&db, Op::Undo).await;
    run.commit().await;
    assert_eq!(undo.await.unwrap(), Said::Proceed);
}

async fn an_undo_waits_for_its_run_and_is_null_if_that_rolls_back(db: Db) {
    let run = begun_with(&db, Op::Run, Said::Proceed).await;
    let undo = beside(&db, Op::Undo).await;
    run.roll_back().await;
    assert_eq!(undo.await.unwrap(), Said::NullUndo);
    assert_eq!(done(&db, Op::Run).await, Said::Dangling);
}

async fn a_run_waits_for_the_undo_that_overtook_it_and_dangles(db: Db) {
    let undo = begun_with(&db, Op::Undo, Said::NullUndo).await;
    let run = beside(&db, Op::Run).await;
    undo.commit().await;
    assert_eq!(run.await.unwrap(), Said::Dangling);
}

async fn a_run_waits_for_the_undo_that_overtook_it_and_proceeds_if_that_rolls_back(db: Db) {
    let undo = begun_with(&db, Op::Undo, Said::NullUndo).await;
    let run = beside(&db, Op::Run).await;
    undo.roll_back().await;
    assert_eq!(run.await.unwrap(), Said::Proceed);
    assert_eq!(done(&db, Op::Undo).await, Said::Proceed);
}

async fn of_two_undos_at_once_one_proceeds(db: Db) {
    done(&db, Op::Run).await;
    let first = begun_with(&db, Op::Undo, Said::Proceed).await;
    let second = beside(&db, Op::Undo).await;
    first.commit().await;
    assert_eq!(second.await.unwrap(), duplicate(Op::Undo));
}

async fn of_confirm_and_cancel_at_once_the_first_counts(db: Db) {
    done(&db, Op::Run).await;
    let confirm = begun_with(&db, Op::Confirm, Said::Proceed).await;
    let cancel = beside(&db, Op::Undo).await;
    confirm.roll_back().await;
    assert_eq!(cancel.await.unwrap(), Said::Proceed);
    assert_eq!(done(&db, Op::Confirm).await, Said::Dangling);
}
