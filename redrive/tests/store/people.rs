//! What people do to tasks.

use std::sync::Arc;
use std::time::Duration;

use redrive::store::{Cancelled, EndedAs, Settled};
use redrive::{DeadReason, Error, Outcome, Policy, TaskId, To};

use crate::harness::*;

layouts!(
    a_pending_task_is_cancelled_at_once,
    a_running_task_is_failed_after_its_attempt,
    a_pending_task_is_failed_by_hand,
    retry_now_makes_it_due,
    a_policy_edit_counts_from_the_next_attempt,
    what_is_not_there_says_so,
    notices_are_marked_once,
);

async fn a_pending_task_is_cancelled_at_once(db: Db) {
    let id = add(&db.store, new(1).delay(Duration::from_secs(60))).await;
    assert_eq!(db.store.cancel(id, later(1)).await.unwrap(), Cancelled::Ended);
    let kept = db.store.archive(&Default::default(), 10).await.unwrap().pop().unwrap();
    assert_eq!((kept.task.id, kept.ended_as, kept.ended_at), (id, EndedAs::Cancelled, later(1)));
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await), (0, 0));
}

async fn a_running_task_is_failed_after_its_attempt(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    assert_eq!(db.store.fail(task.id, NOW).await.unwrap(), Cancelled::Requested);
    assert_eq!(end(&db.store, &task, timeout(), NOW).await, Settled::Went(To::Dead(DeadReason::FailedByHand)));
    let (task, _) = claimed(&db.store, new(2)).await;
    db.store.fail(task.id, NOW).await.unwrap();
    assert_eq!(end(&db.store, &task, Outcome::Done, NOW).await, Settled::Went(To::Done), "done wins");
}

async fn a_pending_task_is_failed_by_hand(db: Db) {
    let id = add(&db.store, new(1)).await;
    assert_eq!(db.store.fail(id, NOW).await.unwrap(), Cancelled::Ended);
    assert_eq!(db.store.get_dead(id).await.unwrap().unwrap().reason, DeadReason::FailedByHand);
}

async fn retry_now_makes_it_due(db: Db) {
    let id = add(&db.store, new(1).delay(Duration::from_secs(3600))).await;
    db.store.retry_now(id, Some("alice"), later(5)).await.unwrap();
    let task = db.store.get(id).await.unwrap().unwrap();
    assert_eq!((task.due, task.updated_by.as_deref()), (later(5), Some("alice")));
    let node = node(&db.store).await;
    assert_eq!(claim_all(&db.store, node, later(5)).await.tasks.len(), 1);
    let said = db.store.retry_now(id, None, later(6)).await.unwrap_err();
    assert!(matches!(&said, Error::Conflict { .. }) && said.to_string().contains("running already"), "{said}");
}

async fn a_policy_edit_counts_from_the_next_attempt(db: Db) {
    let (task, node) = claimed(&db.store, new(1)).await;
    let policy = Arc::new(Policy { max_attempts: Some(2), ..Policy::default() });
    db.store.edit_policy(task.id, &policy, Some("alice"), NOW).await.unwrap();
    assert!(
        matches!(end(&db.store, &task, timeout(), NOW).await, Settled::Went(To::Pending { .. })),
        "the version stayed"
    );
    let task = claim_all(&db.store, node, later(60)).await.tasks.pop().unwrap();
    assert_eq!((task.policy.max_attempts, task.updated_by.as_deref()), (Some(2), Some("alice")));
    assert_eq!(end(&db.store, &task, timeout(), later(60)).await, Settled::Went(To::Dead(DeadReason::Exhausted)));
    let absurd = Arc::new(Policy { max_attempts: Some(0), ..Policy::default() });
    assert!(matches!(db.store.edit_policy(task.id, &absurd, None, NOW).await, Err(Error::Invalid(_))));
}

async fn what_is_not_there_says_so(db: Db) {
    let id = TaskId::from_i64(12345);
    let errors = [
        db.store.cancel(id, NOW).await.unwrap_err(),
        db.store.fail(id, NOW).await.unwrap_err(),
        db.store.retry_now(id, None, NOW).await.unwrap_err(),
        db.store.edit_policy(id, &Arc::default(), None, NOW).await.unwrap_err(),
    ];
    for e in errors {
        assert_eq!(e.to_string(), "no task 12345");
        assert!(!e.is_transient());
    }
    assert_eq!(db.store.get(id).await.unwrap(), None);
}

async fn notices_are_marked_once(db: Db) {
    let id = add(&db.store, new(1)).await;
    db.store.mark_notified(&[id], later(1)).await.unwrap();
    db.store.mark_notified(&[id], later(2)).await.unwrap();
    assert_eq!(db.store.get(id).await.unwrap().unwrap().notified_at, Some(later(1)));
}
