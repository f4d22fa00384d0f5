//! Source 2 §3.5: what is a success.

use redrive::{CallError, Cause, DeadReason, Policy};

use crate::harness::{Db, moment, stores};
use crate::pay::{Answer, Receipt, Shop, deferred, pay, slow};

stores!(
    source_2_no_exception_is_a_success,
    source_2_a_result_that_does_not_meet_the_condition_needs_a_retry,
    source_2_the_condition_decides_in_retries_too,
    source_2_an_exception_in_retry_for_needs_a_retry,
    source_2_another_exception_does_not_need_a_retry,
    source_2_no_retry_for_wins,
    without_lists_every_error_is_tried_again,
);

async fn source_2_no_exception_is_a_success(db: Db) {
    let shop = Shop::open(&db, [Answer::Code(500)]).await;
    assert_eq!(shop.redrive.call(pay(1)).await.unwrap(), Receipt { code: 500 });
    shop.close().await;
}

fn code_200() -> Policy {
    Policy { success_if: Some("result.code == 200".into()), ..slow() }
}

async fn source_2_a_result_that_does_not_meet_the_condition_needs_a_retry(db: Db) {
    let shop = Shop::open(&db, [Answer::Code(500), Answer::Code(200)]).await;
    let called = shop.redrive.call(pay(1).policy(code_200())).await;
    let Err(CallError::Deferred { task_id, cause: Some(Cause::Unmet(value)), .. }) = called else {
        panic!("{called:?}")
    };
    assert_eq!(value, Receipt { code: 500 });
    assert_eq!(shop.redrive.get(task_id).await.unwrap().unwrap().last_error.unwrap().kind.as_str(), "unmet");
    assert_eq!(shop.redrive.call(pay(2).policy(code_200())).await.unwrap(), Receipt { code: 200 });
    shop.close().await;
}

async fn source_2_the_condition_decides_in_retries_too(db: Db) {
    let mut shop = Shop::open(&db, vec![Answer::Code(500); 3]).await;
    let policy = crate::pay::quick(code_200());
    deferred(shop.redrive.call(pay(1).policy(policy)).await);
    let attempts = [shop.next_try().await, shop.next_try().await, shop.next_try().await, shop.next_try().await];
    assert_eq!(attempts.map(|t| t.attempt), [1, 2, 3, 4]);
    shop.close().await;
    assert_eq!(db.count("retry_task").await, 0);
}

fn only(retry_for: &[&'static str], no_retry_for: &[&'static str]) -> Policy {
    let kinds = |names: &[&'static str]| names.iter().map(|name| (*name).into()).collect();
    Policy { retry_for: kinds(retry_for), no_retry_for: kinds(no_retry_for), ..slow() }
}

async fn source_2_an_exception_in_retry_for_needs_a_retry(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout]).await;
    deferred(shop.redrive.call(pay(1).policy(only(&["timeout"], &[]))).await);
    shop.close().await;
}

async fn source_2_another_exception_does_not_need_a_retry(db: Db) {
    let shop = Shop::open(&db, [Answer::Declined]).await;
    let called = shop.redrive.call(pay(1).policy(only(&["timeout"], &[]))).await;
    assert!(matches!(called, Err(CallError::Rejected { .. })), "{called:?}");
    // The same in a retry.
    shop.answer(Answer::Timeout);
    shop.answer(Answer::Declined);
    let id = deferred(shop.redrive.call(pay(2).policy(only(&["timeout"], &[]))).await);
    shop.redrive.retry_now(id, None).await.unwrap();
    while db.count("retry_dead").await == 0 {
        moment().await;
    }
    assert_eq!(db.store.dead(&Default::default(), 1).await.unwrap()[0].reason, DeadReason::Rejected);
    shop.close().await;
}

async fn source_2_no_retry_for_wins(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout]).await;
    let called = shop.redrive.call(pay(1).policy(only(&["timeout"], &["timeout"]))).await;
    assert!(matches!(called, Err(CallError::Rejected { .. })), "{called:?}");
    shop.close().await;
}

async fn without_lists_every_error_is_tried_again(db: Db) {
    let shop = Shop::open(&db, [Answer::Declined]).await;
    deferred(shop.redrive.call(pay(1).policy(only(&[], &[]))).await);
    shop.close().await;
}
