//! What people do to tasks.

use std::sync::Arc;
use std::time::Duration;

use redrive::store::{Cancelled, EndedAs, Settle, Settled};
use redrive::{Backoff, DeadReason, Error, Jitter, OnExhausted, Outcome, Policy, Task, TaskId, To, give_up, spent};

use crate::harness::*;

layouts!(
    a_pending_task_is_cancelled_at_once,
    a_running_task_is_failed_after_its_attempt,
    a_pending_task_is_failed_by_hand,
    retry_now_makes_it_due,
    a_policy_edit_counts_from_the_next_attempt,
    more_attempts_that_are_granted_during_the_last_one_are_made,
    what_is_given_up_all_the_same_has_the_policy_that_it_was_given,
    a_deadline_that_is_put_off_keeps_a_task_from_being_ended,
    what_is_not_there_says_so,
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

fn attempts(n: u32) -> Policy {
    Policy { max_attempts: Some(n), ..Policy::default() }
}

async fn more_attempts_that_are_granted_during_the_last_one_are_made(db: Db) {
    let (task, node) = claimed(&db.store, new(1).policy(attempts(1))).await;
    let more = Policy { backoff: Backoff::fixed(Duration::from_secs(7)), jitter: Jitter::None, ..attempts(10) };
    db.store.edit_policy(task.id, &more.clone().into(), Some("alice"), NOW).await.unwrap();
    assert_eq!(end(&db.store, &task, timeout(), later(1)).await, Settled::Went(To::Pending { due: later(8) }));
    let again = claim_all(&db.store, node, later(8)).await.tasks.pop().unwrap();
    assert_eq!((again.attempts, again.history.len(), &*again.policy), (1, 1, &more));
    assert_eq!(db.count("retry_dead").await, 0);

    let task = Task { policy: attempts(2).into(), ..again }; // as if it had been edited in this attempt again
    db.store.cancel(task.id, NOW).await.unwrap();
    assert_eq!(
        end(&db.store, &task, timeout(), later(9)).await,
        Settled::Went(To::Cancelled),
        "the other wish holds, too"
    );
}

async fn what_is_given_up_all_the_same_has_the_policy_that_it_was_given(db: Db) {
    let (task, _) = claimed(&db.store, new(1).policy(attempts(1))).await;
    let told = Policy { on_exhausted: OnExhausted::Escalate, on_final_failure: Some("told".into()), ..attempts(1) };
    db.store.edit_policy(task.id, &told.clone().into(), None, NOW).await.unwrap();
    assert_eq!(end(&db.store, &task, timeout(), later(1)).await, Settled::Went(To::Dead(DeadReason::Exhausted)));
    let letter = db.store.get_dead(task.id).await.unwrap().unwrap();
    assert_eq!((&*letter.task.policy, letter.task.attempts, letter.next_remind_time), (&told, 1, Some(later(1))));
    assert_eq!(db.store.scan(&slices_of("told"), later(1), 10).await.unwrap().len(), 1);

    let (task, _) = claimed(&db.store, new(2).policy(attempts(1))).await;
    let drop = Policy { on_exhausted: OnExhausted::Drop, ..attempts(1) };
    db.store.edit_policy(task.id, &drop.into(), None, NOW).await.unwrap();
    assert_eq!(end(&db.store, &task, timeout(), NOW).await, Settled::Went(To::Dropped(DeadReason::Exhausted)));
}

/// It was read as overdue, and is given more time before it is ended: as it waits, or just claimed.
async fn a_deadline_that_is_put_off_keeps_a_task_from_being_ended(db: Db) {
    let until = |seconds| Policy { deadline: Some(later(seconds)), ..Policy::default() };
    let pending = add(&db.store, new(1).policy(until(10)).delay(Duration::from_secs(5))).await;
    let pending = db.store.get(pending).await.unwrap().unwrap();
    let (running, _) = claimed(&db.store, new(2).policy(until(10))).await;
    for task in [pending, running] {
        let end = Settle::new(task.clone(), give_up(&task, spent(&task, later(10)).unwrap()));
        db.store.edit_policy(task.id, &until(20).into(), None, NOW).await.unwrap();
        assert_eq!(db.store.settle(std::slice::from_ref(&end), later(10)).await.unwrap(), [Settled::Lost]);
        let stored = db.store.get(task.id).await.unwrap().unwrap();
        assert_eq!(stored, Task { policy: until(20).into(), ..task }, "it is left alone");
        assert_eq!(
            db.store.settle(&[end], later(20)).await.unwrap(),
            [Settled::Went(To::Dead(DeadReason::Expired))],
            "that time is up as well"
        );
        assert_eq!(*db.store.get_dead(stored.id).await.unwrap().unwrap().task.policy, until(20));
    }
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
