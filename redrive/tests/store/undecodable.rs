//! Rows with values that redrive never writes: set by hand, in SQL. Such a row becomes a dead letter and stops no other.

use redrive::store::{DeadFilter, OverdueWalk, Redriven, Settle, TaskFilter};
use redrive::{DeadReason, Outcome, Policy, Status, TaskId, To, settle};

use crate::harness::*;

layouts!(
    a_claim_gets_all_others,
    a_claim_by_list_gets_all_others,
    a_rescue_takes_back_all_others,
    a_look_for_lost_claims_finds_all_others,
    what_is_overdue_beside_it_ends,
    pages_show_the_row_and_its_error,
    its_dead_letter_is_redriven,
    a_limit_that_is_made_undecodable_during_the_last_attempt_does_not_keep_it,
);

/// Columns with values that are undecodable, and what the error says.
fn poisons(kind: Kind) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut all = vec![
        ("max_attempts", "-1", "max_attempts holds -1"),
        ("attempt_count", "-3", "attempt_count holds -3"),
        ("crashes", "-1", "crashes holds -1"),
        ("max_retry_duration", "-1", "max_retry_duration holds -1"),
        ("cancel_requested", "9", "cancel_requested holds 9"),
        ("version", "2147483647", "version holds 2147483647"),
        ("version", "-7", "version holds -7"),
    ];
    if kind == Kind::Sqlite {
        // The others refuse to store these.
        all.extend([
            ("priority", "99999", "priority holds 99999"),
            ("version", "5000000000", "version holds 5000000000"),
            ("attempt_count", "'many'", "attempt_count holds \"many\""),
            ("last_error_msg", "CAST(x'ff' AS TEXT)", "last_error_msg holds bytes that are no text"),
        ]);
    }
    all
}

/// Sets a value by hand.
async fn poison(db: &Db, id: TaskId, column: &str, value: &str) {
    db.sql(&format!("UPDATE retry_task SET {column} = {value} WHERE id = {}", id.as_i64())).await;
}

async fn clear(db: &Db) {
    db.sql("DELETE FROM retry_task").await;
    db.sql("DELETE FROM redrive_key").await;
}

/// The dead letter that the row became: what it says, and that its params are kept.
async fn expect_letter(db: &Db, id: TaskId, said: &str) {
    let letter = db.store.get_dead(id).await.unwrap().unwrap_or_else(|| panic!("no dead letter: {said}"));
    let error = letter.task.last_error.clone().unwrap();
    assert_eq!((letter.reason, error.kind.as_str()), (DeadReason::Undecodable, "undecodable"), "{said}");
    assert!(error.message.contains(said), "{} does not say {said}", error.message);
    assert_eq!(letter.task.params, "7");
}

async fn a_claim_gets_all_others(db: Db) {
    let node = node(&db.store).await;
    for (column, value, said) in poisons(db.kind) {
        let ids = add_many(&db.store, 50).await;
        poison(&db, ids[7], column, value).await;
        let claimed = claim_all(&db.store, node, NOW).await;
        assert_eq!(claimed.tasks.len(), 49, "{said}");
        for task in &claimed.tasks {
            end(&db.store, task, Outcome::Done, NOW).await;
        }
        // One that no claim can touch is found by the scan.
        assert!(db.store.scan(&slices(), NOW, 1_000).await.unwrap().is_empty(), "{said}");
        expect_letter(&db, ids[7], said).await;
        assert_eq!(db.count("retry_task").await, 0, "{said}");
    }
}

async fn a_claim_by_list_gets_all_others(db: Db) {
    let node = node(&db.store).await;
    for (column, value, said) in poisons(db.kind) {
        let ids = add_many(&db.store, 50).await;
        poison(&db, ids[7], column, value).await;
        let due = db.store.scan(&slices(), NOW, 1_000).await.unwrap();
        let claimed = db.store.claim(&due, node, NOW).await.unwrap();
        assert_eq!(claimed.tasks.len(), 49, "{said}");
        expect_letter(&db, ids[7], said).await;
        for task in &claimed.tasks {
            end(&db.store, task, Outcome::Done, NOW).await;
        }
    }
}

async fn a_rescue_takes_back_all_others(db: Db) {
    for (column, value, said) in poisons(db.kind) {
        let victim = node(&db.store).await;
        let ids = add_many(&db.store, 50).await;
        assert_eq!(claim_all(&db.store, victim, NOW).await.tasks.len(), 50);
        poison(&db, ids[7], column, value).await;
        db.store.fence(victim, 0).await.unwrap();
        let rescued = db.store.rescue(&lanes(), NOW, 1_000).await.unwrap().tasks;
        let dead: Vec<_> = rescued.iter().filter(|(_, to)| *to == To::Dead(DeadReason::Undecodable)).collect();
        assert_eq!((rescued.len(), dead.len()), (50, 1), "{said}");
        expect_letter(&db, ids[7], said).await;
        clear(&db).await;
    }
}

async fn a_look_for_lost_claims_finds_all_others(db: Db) {
    let node = node(&db.store).await;
    for (column, value, said) in poisons(db.kind) {
        let ids = add_many(&db.store, 50).await;
        assert_eq!(claim_all(&db.store, node, NOW).await.tasks.len(), 50);
        poison(&db, ids[7], column, value).await;
        let held = db.store.held_by(&lanes(), node, later(60), later(60), 1_000).await.unwrap();
        assert_eq!(held.len(), 50, "{said}");
        for task in held {
            end(&db.store, &task, Outcome::GivenBack, NOW).await;
        }
        assert_eq!(db.sql("SELECT COUNT(*) FROM retry_task WHERE status = 0").await, Some(49), "{said}");
        expect_letter(&db, ids[7], said).await;
        clear(&db).await;
    }
}

async fn what_is_overdue_beside_it_ends(db: Db) {
    for (column, value, said) in poisons(db.kind) {
        let policy = Policy { deadline: Some(later(10)), ..Policy::default() };
        let ids: Vec<TaskId> = db
            .store
            .insert((0..20).map(|n| new(n).policy(policy.clone())).collect(), NOW)
            .await
            .unwrap()
            .iter()
            .map(|a| a.id)
            .collect();
        poison(&db, ids[7], column, value).await;
        let ended = db.store.end_overdue(&mut OverdueWalk::default(), later(60)).await.unwrap();
        assert_eq!(ended.len(), 20, "{said}");
        assert_eq!(db.count("retry_task").await, 0, "{said}");
        expect_letter(&db, ids[7], said).await;
    }
}

async fn pages_show_the_row_and_its_error(db: Db) {
    for (column, value, said) in poisons(db.kind) {
        let ids = add_many(&db.store, 10).await;
        poison(&db, ids[7], column, value).await;
        let filter = TaskFilter::default();
        let page = db.store.list(&filter, 100).await.unwrap();
        assert_eq!(page.len(), 10, "{said}");
        let shown = page.into_iter().find(|task| task.id == ids[7]).unwrap();
        for task in [shown, db.store.get(ids[7]).await.unwrap().unwrap()] {
            assert!(task.undecodable.as_ref().unwrap().contains(said), "{said}");
            assert!(task.last_error.unwrap().message.contains(said), "{said}");
        }
        // A new policy mends its limits.
        db.store.edit_policy(ids[7], &Policy::default().into(), None, NOW).await.unwrap();
        let now = db.store.get(ids[7]).await.unwrap().unwrap();
        assert_eq!(now.undecodable.is_none(), column.starts_with("max_"), "{said}");
        clear(&db).await;
    }
}

async fn its_dead_letter_is_redriven(db: Db) {
    let node = node(&db.store).await;
    let ids = add_many(&db.store, 10).await;
    poison(&db, ids[7], "max_attempts", "-1").await;
    assert_eq!(claim_all(&db.store, node, NOW).await.tasks.len(), 9);
    expect_letter(&db, ids[7], "max_attempts holds -1").await;
    // Dead letters are edited by hand as well.
    db.sql("UPDATE retry_dead SET max_attempts = -1, remind_count = -1, dead_reason = 'so'").await;
    let page = db.store.dead(&DeadFilter::default(), 10).await.unwrap();
    let said = &page[0].task.last_error.as_ref().unwrap().message;
    assert!(said.contains("max_attempts holds -1") && said.contains("dead_reason holds \"so\""), "{said}");
    let went = db.store.redrive(&[ids[7]], None, "alice", NOW).await.unwrap();
    assert!(matches!(went[..], [Redriven::As(_)]), "{went:?}");
    let again = claim_all(&db.store, node, NOW).await;
    assert_eq!((again.tasks.len(), &*again.tasks[0].params), (1, "7"));
    assert_eq!((again.tasks[0].status, again.tasks[0].undecodable.as_ref()), (Status::Running, None));
}

async fn a_limit_that_is_made_undecodable_during_the_last_attempt_does_not_keep_it(db: Db) {
    let policy = Policy { max_attempts: Some(1), ..Policy::default() };
    let node = node(&db.store).await;
    db.store.insert((0..5).map(|n| new(n).policy(policy.clone())).collect(), NOW).await.unwrap();
    let tasks = claim_all(&db.store, node, NOW).await.tasks;
    poison(&db, tasks[2].id, "max_attempts", "-1").await;
    let settles: Vec<Settle> =
        tasks.iter().map(|task| Settle::new(task.clone(), settle(task, &timeout(), NOW, 0.0))).collect();
    db.store.settle(&settles, NOW).await.unwrap();
    assert_eq!((db.count("retry_task").await, db.count("retry_dead").await), (0, 5));
}
