use std::time::Duration;

use redrive::store::{EndedAs, Kept, Settle, Settled};
use redrive::{
    Backoff, DeadReason, Failure, Jitter, NewTask, OnExhausted, Outcome, Policy, Status, StopRequest, Task, To, settle,
};

use crate::harness::*;

layouts!(
    done_leaves_nothing,
    done_may_be_kept_with_its_result,
    again_waits_with_its_error_noted,
    the_row_is_what_the_pure_function_says,
    history_is_bounded,
    a_snooze_burns_no_attempt,
    giving_back_burns_nothing,
    dead_letters_keep_everything,
    dropped_tasks_leave_a_line_in_the_archive,
    escalating_tasks_are_reminded_of_from_the_start,
    follow_ups_are_written_with_the_end,
    a_mixed_batch_is_settled_row_by_row,
    a_large_batch_is_settled_in_few_statements,
    settling_twice_is_lost_the_second_time,
    settling_again_says_what_was_written,
    what_was_written_before_others_failed_is_not_lost,
    a_settle_without_the_right_version_or_owner_is_lost,
    a_settle_after_a_fence_is_lost,
    a_put_back_that_meets_a_fence_says_what_it_changed,
    a_rescue_between_the_select_and_the_delete_of_a_settle,
    cancel_racing_settle_ends_in_one_of_the_two,
    a_huge_error_is_cut,
);

async fn done_leaves_nothing(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    assert_eq!(end(&db.store, &task, Outcome::Done, NOW).await, Settled::Went(To::Done));
    for table in ["retry_task", "redrive_key", "retry_dead", "retry_archive"] {
        assert_eq!(db.count(table).await, 0, "{table}");
    }
}

async fn done_may_be_kept_with_its_result(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    let mut done = Settle::new(task.clone(), settle(&task, &Outcome::Done, NOW, 0.0));
    done.keep = Some(Kept { result: Some(r#"{"code":200}"#.into()) });
    assert_eq!(db.store.settle(&[done], later(3)).await.unwrap(), [Settled::Went(To::Done)]);
    let kept = db.store.archive(&Default::default(), 10).await.unwrap().pop().unwrap();
    assert_eq!(
        (kept.ended_as, kept.ended_at, kept.result.as_deref()),
        (EndedAs::Done, later(3), Some(r#"{"code":200}"#))
    );
    assert_eq!((kept.task.id, db.count("retry_task").await, db.count("redrive_key").await), (task.id, 0, 0));
}

async fn again_waits_with_its_error_noted(db: Db) {
    let (task, node) = claimed(&db.store, new(1)).await;
    end(&db.store, &task, timeout(), later(1)).await;
    let t = db.store.get(task.id).await.unwrap().unwrap();
    assert_eq!((t.status, t.attempts, t.due, t.version), (Status::Pending, 1, later(3), 2));
    assert_eq!((t.first_failed_at, t.locked_by), (Some(later(1)), Some(node)), "the last owner stays on record");
    assert_eq!(
        (t.last_error.unwrap().message, t.history.len(), t.history[0].node),
        ("no answer".into(), 1, Some(node))
    );
    assert_eq!(claim_all(&db.store, node, later(2)).await.tasks.len(), 0);
    assert_eq!(claim_all(&db.store, node, later(3)).await.tasks.len(), 1);
}

async fn the_row_is_what_the_pure_function_says(db: Db) {
    let policy = Policy { backoff: Backoff::fixed(Duration::from_secs(5)), jitter: Jitter::Full, ..Policy::default() };
    let (mut task, node) = claimed(&db.store, new(1).policy(policy).business("order", "7")).await;
    let outcomes = [
        timeout(),
        Outcome::Snooze(Duration::from_secs(9)),
        Outcome::Failed(Failure::retry("http.429", "slow down").after(Duration::from_secs(99))),
        Outcome::GivenBack,
        timeout(),
    ];
    let mut now = NOW;
    for outcome in outcomes {
        let change = settle(&task, &outcome, now, 0.25);
        let expected = task.after(&change, now);
        assert_eq!(
            db.store.settle(&[Settle::new(task.clone(), change.clone())], now).await.unwrap(),
            [Settled::Went(change.to)]
        );
        assert_eq!(db.store.get(task.id).await.unwrap().unwrap(), expected);
        now = expected.due;
        task = claim_all(&db.store, node, now).await.tasks.pop().unwrap();
        assert_eq!(
            task,
            Task { status: Status::Running, version: expected.version + 1, locked_at: task.locked_at, ..expected }
        );
    }
}

async fn history_is_bounded(db: Db) {
    let policy = Policy { max_attempts: None, ..Policy::default() };
    let (mut task, node) = claimed(&db.store, new(1).policy(policy)).await;
    let mut now = NOW;
    for _ in 0..15 {
        end(&db.store, &task, timeout(), now).await;
        now = now + Duration::from_secs(1000);
        task = claim_all(&db.store, node, now).await.tasks.pop().unwrap();
    }
    assert_eq!((task.attempts, task.history.len()), (15, 10));
    assert_eq!((task.history[0].n, task.history[9].n), (6, 15), "the latest are kept");
}

async fn a_snooze_burns_no_attempt(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    end(&db.store, &task, Outcome::Snooze(Duration::from_secs(30)), NOW).await;
    let t = db.store.get(task.id).await.unwrap().unwrap();
    assert_eq!((t.status, t.attempts, t.postponements, t.due, t.last_error), (Status::Pending, 0, 1, later(30), None));
}

async fn giving_back_burns_nothing(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    end(&db.store, &task, Outcome::GivenBack, later(5)).await;
    let t = db.store.get(task.id).await.unwrap().unwrap();
    assert_eq!((t.status, t.attempts, t.postponements, t.crashes, t.due), (Status::Pending, 0, 0, 0, NOW));
}

async fn dead_letters_keep_everything(db: Db) {
    let policy = Policy { max_attempts: Some(1), ..Policy::default() };
    let (task, _) = claimed(&db.store, new(1).policy(policy).business("order", "7").created_by("alice")).await;
    assert_eq!(end(&db.store, &task, timeout(), later(1)).await, Settled::Went(To::Dead(DeadReason::Exhausted)));
    let letter = db.store.get_dead(task.id).await.unwrap().unwrap();
    assert_eq!((letter.reason, letter.dead_at, letter.next_remind_time), (DeadReason::Exhausted, later(1), None));
    assert_eq!((letter.task.attempts, letter.task.last_error.unwrap().message), (1, "no answer".into()));
    assert_eq!(
        (letter.task.params, letter.task.policy, letter.task.business),
        (task.params, task.policy, task.business)
    );
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await), (0, 0));
}

async fn dropped_tasks_leave_a_line_in_the_archive(db: Db) {
    let policy = Policy { max_attempts: Some(1), on_exhausted: OnExhausted::Drop, ..Policy::default() };
    let (task, _) = claimed(&db.store, new(1).policy(policy)).await;
    assert_eq!(end(&db.store, &task, timeout(), NOW).await, Settled::Went(To::Dropped(DeadReason::Exhausted)));
    let kept = db.store.archive(&Default::default(), 10).await.unwrap().pop().unwrap();
    assert_eq!((kept.ended_as, kept.dead_reason), (EndedAs::Dropped, Some(DeadReason::Exhausted)));
    assert_eq!((db.count("retry_task").await, db.count("retry_dead").await), (0, 0));
}

async fn escalating_tasks_are_reminded_of_from_the_start(db: Db) {
    let policy = Policy { on_exhausted: OnExhausted::Escalate, ..Policy::default() };
    let (task, _) = claimed(&db.store, new(1).policy(policy)).await;
    end(&db.store, &task, Outcome::Fatal(Failure::retry("broken", "no use")), later(4)).await;
    let letter = db.store.get_dead(task.id).await.unwrap().unwrap();
    assert_eq!(
        (letter.reason, letter.next_remind_time, letter.remind_count),
        (DeadReason::Rejected, Some(later(4)), 0)
    );
}

async fn follow_ups_are_written_with_the_end(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    let mut done = Settle::new(task.clone(), settle(&task, &Outcome::Done, NOW, 0.0));
    done.follow_ups = vec![NewTask::new("on_success", &"paid").unwrap().key(format!("on_success:{}", task.id))];
    assert_eq!(db.store.settle(&[done.clone()], NOW).await.unwrap(), [Settled::Went(To::Done)]);
    let left = db.store.list(&Default::default(), 10).await.unwrap();
    assert_eq!(left.iter().map(|t| &*t.method).collect::<Vec<_>>(), ["on_success"]);
    assert_eq!(db.store.settle(&[done], NOW).await.unwrap(), [Settled::Lost]);
    assert_eq!(db.count("retry_task").await, 1, "not with a settle that was lost");
}

async fn a_mixed_batch_is_settled_row_by_row(db: Db) {
    let node = node(&db.store).await;
    add_many(&db.store, 6).await;
    let mut tasks = claim_all(&db.store, node, NOW).await.tasks;
    tasks.sort_by_key(|t| t.params.clone());
    let stale = Task { version: tasks[4].version + 7, ..tasks[4].clone() };
    let change = |t: &Task, o: Outcome| Settle::new(t.clone(), settle(t, &o, NOW, 0.0));
    let batch = vec![
        change(&tasks[0], Outcome::Done),
        change(&tasks[1], timeout()),
        change(&tasks[2], Outcome::Fatal(Failure::retry("x", "x"))),
        change(&tasks[3], Outcome::Cancel),
        change(&stale, Outcome::Done),
        change(&tasks[5], Outcome::Done),
    ];
    let went = db.store.settle(&batch, NOW).await.unwrap();
    assert_eq!(went[0], Settled::Went(To::Done));
    assert!(matches!(went[1], Settled::Went(To::Pending { .. })));
    assert_eq!(went[2], Settled::Went(To::Dead(DeadReason::Rejected)));
    assert_eq!((went[3], went[4], went[5]), (Settled::Went(To::Cancelled), Settled::Lost, Settled::Went(To::Done)));
    assert_eq!(
        (db.count("retry_task").await, db.count("retry_dead").await, db.count("retry_archive").await),
        (2, 1, 1)
    );
    assert_eq!(db.count("redrive_key").await, 2);
}

async fn a_large_batch_is_settled_in_few_statements(db: Db) {
    let node = node(&db.store).await;
    add_many(&db.store, 2_500).await;
    let tasks = claim_all(&db.store, node, NOW).await.tasks;
    assert_eq!(tasks.len(), 2_500);
    let outcome = |t: &Task| if t.id.as_i64() % 2 == 0 { Outcome::Done } else { timeout() };
    let batch: Vec<_> = tasks.iter().map(|t| Settle::new(t.clone(), settle(t, &outcome(t), NOW, 0.0))).collect();
    assert!(db.store.settle(&batch, NOW).await.unwrap().iter().all(|s| *s != Settled::Lost));
    let left = tasks.iter().filter(|t| t.id.as_i64() % 2 != 0).count() as i64;
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await), (left, left));
}

async fn settling_twice_is_lost_the_second_time(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    assert!(matches!(end(&db.store, &task, timeout(), NOW).await, Settled::Went(_)));
    for outcome in [timeout(), Outcome::Done, Outcome::Cancel, Outcome::Undecodable("?".into())] {
        assert_eq!(end(&db.store, &task, outcome, NOW).await, Settled::Lost);
    }
    assert_eq!(
        (db.count("retry_task").await, db.count("retry_dead").await, db.count("retry_archive").await),
        (1, 0, 0)
    );
}

async fn settling_again_says_what_was_written(db: Db) {
    let node = node(&db.store).await;
    add_many(&db.store, 7).await;
    let tasks = claim_all(&db.store, node, NOW).await.tasks;
    let fatal = || Outcome::Fatal(Failure::retry("x", "x"));
    let outcomes = [
        Outcome::Done,
        Outcome::Done,
        Outcome::Done,
        timeout(),
        fatal(),
        Outcome::Cancel,
        Outcome::Snooze(Duration::from_secs(60)),
    ];
    let change = |(t, o): (&Task, Outcome)| Settle::new(t.clone(), settle(t, &o, NOW, 0.0));
    let mut batch: Vec<Settle> = tasks.iter().zip(outcomes).map(change).collect();
    batch[1].follow_ups = vec![NewTask::new("told", &1).unwrap()];
    batch[2].keep = Some(Kept::default());
    let went = db.store.settle(&batch, NOW).await.unwrap();
    assert!(!went.contains(&Settled::Lost));
    assert_eq!(db.store.settle(&batch, NOW).await.unwrap(), [Settled::Lost; 7]);
    batch.iter_mut().for_each(|s| s.again = true);
    assert_eq!(db.store.settle(&batch, NOW).await.unwrap(), went);
    assert_eq!(
        (db.count("retry_task").await, db.count("retry_dead").await, db.count("retry_archive").await),
        (3, 1, 2),
        "nothing is written twice"
    );
    // What is still there was not written.
    let (task, _) = claimed(&db.store, new(99)).await;
    for outcome in [Outcome::Done, timeout(), fatal(), Outcome::Cancel] {
        let mut stale = change((&Task { version: task.version + 7, ..task.clone() }, outcome));
        stale.again = true;
        stale.follow_ups = vec![NewTask::new("told", &2).unwrap()];
        assert_eq!(db.store.settle(&[stale], NOW).await.unwrap(), [Settled::Lost]);
    }
}

/// One settle is several transactions.
async fn what_was_written_before_others_failed_is_not_lost(db: Db) {
    let node = node(&db.store).await;
    db.store.insert([1, 2, 13].map(new).into(), NOW).await.unwrap();
    let mut tasks = claim_all(&db.store, node, NOW).await.tasks;
    tasks.sort_by_key(|task| task.params.len());
    let outcomes = [Outcome::Done, timeout(), Outcome::Fatal(Failure::retry("x", "x"))];
    let change = |(t, o): (&Task, Outcome)| Settle::new(t.clone(), settle(t, &o, NOW, 0.0));
    let mut batch: Vec<Settle> = tasks.iter().zip(outcomes).map(change).collect();
    let ((refuse, allow), mut raw) = (refusal(db.kind), Raw::connect(&db).await);
    raw.sql(refuse).await.unwrap();
    assert!(!db.store.settle(&batch, NOW).await.unwrap_err().is_transient());
    raw.sql(allow).await.unwrap();
    batch.iter_mut().for_each(|s| s.again = true);
    let wanted: Vec<Settled> = batch.iter().map(|s| Settled::Went(s.change.to)).collect();
    assert_eq!(db.store.settle(&batch, NOW).await.unwrap(), wanted);
}

async fn a_settle_without_the_right_version_or_owner_is_lost(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    let other = node(&db.store).await;
    let stolen = Task { locked_by: Some(other), ..task.clone() };
    let old = Task { version: task.version - 1, ..task.clone() };
    for wrong in [&stolen, &old] {
        for outcome in [Outcome::Done, timeout(), Outcome::Cancel] {
            assert_eq!(end(&db.store, wrong, outcome, NOW).await, Settled::Lost);
        }
    }
    assert_eq!(db.store.get(task.id).await.unwrap().unwrap(), task, "nothing was touched");
}

async fn a_settle_after_a_fence_is_lost(db: Db) {
    let (task, node) = claimed(&db.store, new(1)).await;
    assert!(db.store.fence(node, 0).await.unwrap());
    for outcome in [Outcome::Done, timeout(), Outcome::Cancel] {
        assert_eq!(end(&db.store, &task, outcome, NOW).await, Settled::Lost, "even before the rescue");
    }
    assert_eq!(db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks.len(), 1);
    assert_eq!(end(&db.store, &task, Outcome::Done, NOW).await, Settled::Lost);
    assert_eq!(db.count("retry_task").await, 1);
}

/// What a naive settle on MySQL does wrong: it copies the row to the dead letters, a rescue comes in between, and the
/// delete finds nothing, so that the task is in both tables. Here the two meet at every moment they can.
async fn a_rescue_between_the_select_and_the_delete_of_a_settle(db: Db) {
    let other = db.another().await;
    for round in 0..15 {
        let (task, node) = claimed(&db.store, new(round).at(NOW)).await;
        let dying = Outcome::Fatal(Failure::retry("x", "x"));
        let rescue = async {
            if other.fence(node, 0).await.unwrap() {
                other.rescue(&lanes(), NOW, 10).await.unwrap();
            }
        };
        let (settled, ()) = tokio::join!(end(&db.store, &task, dying, NOW), rescue);
        let (waits, dead) =
            (db.store.get(task.id).await.unwrap().is_some(), db.store.get_dead(task.id).await.unwrap().is_some());
        assert!(waits != dead, "in exactly one place");
        assert_eq!(dead, settled == Settled::Went(To::Dead(DeadReason::Rejected)));
        db.sql("DELETE FROM retry_task").await;
    }
}

async fn cancel_racing_settle_ends_in_one_of_the_two(db: Db) {
    let other = db.another().await;
    for (round, outcome) in (0..20).map(|n| (n, if n % 2 == 0 { Outcome::Done } else { timeout() })) {
        let (task, _) = claimed(&db.store, new(round)).await;
        let (settled, cancelled) =
            tokio::join!(end(&db.store, &task, outcome.clone(), NOW), other.cancel(task.id, NOW));
        assert_ne!(settled, Settled::Lost, "a cancel does not take the task from its owner");
        let left = db.store.get(task.id).await.unwrap();
        match (settled, cancelled) {
            (Settled::Went(To::Done), _) => assert!(left.is_none()),
            (Settled::Went(To::Cancelled), Ok(_)) => assert!(left.is_none()),
            // Put back first, cancelled then.
            (Settled::Went(To::Pending { .. }), Ok(_)) => assert!(left.is_none()),
            other => panic!("{other:?}"),
        }
        if outcome == Outcome::Done {
            assert_eq!(settled, Settled::Went(To::Done), "done wins");
        }
        assert_eq!(db.count("retry_task").await, 0);
    }
    // And one after the other: the wish is seen when the attempt ends.
    let (task, _) = claimed(&db.store, new(99)).await;
    other.cancel(task.id, NOW).await.unwrap();
    let seen = db.store.get(task.id).await.unwrap().unwrap();
    assert_eq!((seen.stop, seen.version), (StopRequest::Cancel, task.version), "the version stays");
    assert_eq!(end(&db.store, &task, timeout(), NOW).await, Settled::Went(To::Cancelled));
    let kept = db.store.archive(&Default::default(), 100).await.unwrap();
    assert!(kept.iter().any(|a| a.ended_as == EndedAs::Cancelled && a.task.id == task.id));
}

async fn a_huge_error_is_cut(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    let said = format!("{}\0", "é".repeat(100_000));
    end(&db.store, &task, Outcome::Failed(Failure::retry("k".repeat(300), said)), NOW).await;
    let error = db.store.get(task.id).await.unwrap().unwrap().last_error.unwrap();
    assert_eq!((error.message.len(), error.kind.as_str().len()), (8192, 100));
}

/// The node is fenced while its outcomes are written: what is said to have been put back was.
async fn a_put_back_that_meets_a_fence_says_what_it_changed(db: Db) {
    let other = db.another().await;
    for round in 0..if db.kind == Kind::MySql { 40 } else { 3 } {
        let victim = node(&db.store).await;
        let tasks = (0..100).map(|n| new(n).no_key()).collect();
        db.store.insert(tasks, NOW).await.unwrap();
        let tasks = claim_all(&db.store, victim, NOW).await.tasks;
        let outcome = |task: &Task| Settle::new(task.clone(), settle(task, &timeout(), NOW, 0.0));
        let settles: Vec<Settle> = tasks.iter().map(outcome).collect();
        let fence = async {
            _ = tokio::time::timeout(Duration::from_micros(300 * round), std::future::pending::<()>()).await;
            other.fence(victim, 0).await.unwrap()
        };
        let (settled, _) = tokio::join!(db.store.settle(&settles, NOW), fence);
        let went = settled.unwrap().iter().filter(|settled| matches!(settled, Settled::Went(_))).count() as i64;
        assert_eq!(db.sql("SELECT COUNT(*) FROM retry_task WHERE status = 0").await, Some(went), "round {round}");
        db.sql("DELETE FROM retry_task").await;
    }
}
