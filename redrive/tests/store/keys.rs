use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redrive::store::Settled;
use redrive::{Enqueued, NewTask, OnDuplicate, Outcome, Policy, Store, To};

use crate::harness::*;

layouts!(
    the_same_call_twice_is_one_task,
    equal_keys_in_one_batch_are_one_task,
    a_key_belongs_to_its_business,
    a_thousand_concurrent_inserts_of_one_key_are_one_row,
    batches_in_opposite_order_never_deadlock_a_caller,
    a_key_held_by_an_open_transaction_makes_only_its_own_callers_wait,
    a_batch_with_a_held_key_writes_the_others_at_once,
    the_key_is_free_again_when_the_task_is_done,
    dead_and_cancelled_tasks_do_not_hold_their_key,
    a_key_may_outlive_its_task,
    a_duplicate_may_replace_the_policy,
    a_duplicate_does_not_replace_a_callback_of_redrives_own,
    tasks_without_a_key_are_never_merged,
    inserts_race_with_the_end_of_the_holder,
    a_contended_key_does_not_repeat_the_rest_of_its_batch,
);

async fn the_same_call_twice_is_one_task(db: Db) {
    let first = db.store.insert(vec![new(1)], NOW).await.unwrap()[0];
    let again = db.another().await.insert(vec![new(1)], later(9)).await.unwrap()[0];
    assert_eq!((again.id, first.existed, again.existed), (first.id, false, true));
    assert_eq!(db.store.get(first.id).await.unwrap().unwrap().created_at, NOW);
    assert_eq!(db.count("retry_task").await, 1);
}

async fn equal_keys_in_one_batch_are_one_task(db: Db) {
    let answers = db.store.insert(vec![new(1), new(2), new(1), new(1)], NOW).await.unwrap();
    assert_eq!(answers.iter().map(|a| a.existed).collect::<Vec<_>>(), [false, false, true, true]);
    assert_eq!((answers[2].id, answers[3].id), (answers[0].id, answers[0].id));
    assert_eq!(db.count("retry_task").await, 2);
}

async fn a_key_belongs_to_its_business(db: Db) {
    let tasks = vec![new(1).key("k"), new(1).key("k").business("order", "1"), new(1).key("k").business("order", "2")];
    assert!(db.store.insert(tasks.clone(), NOW).await.unwrap().iter().all(|a| !a.existed));
    assert!(db.store.insert(tasks, NOW).await.unwrap().iter().all(|a| a.existed));
}

/// Inserts a task, again if no connection became free in time: on a busy machine a thousand callers wait for long.
async fn insert_one(store: &Store, task: NewTask) -> Enqueued {
    loop {
        match store.insert(vec![task.clone()], NOW).await {
            Ok(answers) => return answers[0],
            Err(e) => assert!(e.to_string().contains("no connection became free"), "{e}"),
        }
        moment().await;
    }
}

async fn a_thousand_concurrent_inserts_of_one_key_are_one_row(db: Db) {
    let others = [db.another().await, db.another().await];
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..1_000 {
        let store: Store = if n % 3 < 2 { others[n % 3].clone() } else { db.store.clone() };
        calls.spawn(async move { insert_one(&store, new(n as u64).key("one")).await });
    }
    let answers = calls.join_all().await;
    assert_eq!(answers.iter().map(|a| a.id).collect::<HashSet<_>>().len(), 1);
    assert_eq!(answers.iter().filter(|a| !a.existed).count(), 1);
    assert_eq!(db.count("retry_task").await, 1);
}

async fn batches_in_opposite_order_never_deadlock_a_caller(db: Db) {
    let other = db.another().await;
    for round in 0..10 {
        let keys = |n: u64| new(n).key(format!("{round}-{n}"));
        let forward: Vec<_> = (0..200).map(keys).collect();
        let backward: Vec<_> = (0..200).rev().map(keys).collect();
        let (one, two) = tokio::join!(db.store.insert(forward, NOW), other.insert(backward, NOW));
        let new = one.unwrap().iter().chain(&two.unwrap()).filter(|a| !a.existed).count();
        assert_eq!(new, 200, "each key once, in round {round}");
    }
}

/// On SQLite an open write transaction holds the whole file, so "only its own callers" is everyone there.
async fn a_key_held_by_an_open_transaction_makes_only_its_own_callers_wait(db: Db) {
    let mut raw = Raw::connect(&db).await;
    raw.begin().await;
    db.store.insert_in(raw.connection(), vec![new(1).key("held")], NOW).await.unwrap();
    let store = db.store.clone();
    let waiting = tokio::spawn(async move { store.insert(vec![new(2).key("held")], NOW).await.unwrap()[0] });
    if db.kind != Kind::Sqlite {
        for n in 0..20 {
            assert!(!db.store.insert(vec![new(n).key(format!("free-{n}"))], NOW).await.unwrap()[0].existed);
        }
        assert!(!waiting.is_finished(), "the key is held");
    }
    raw.commit().await;
    assert!(waiting.await.unwrap().existed, "it is the task of the transaction");
}

async fn a_batch_with_a_held_key_writes_the_others_at_once(db: Db) {
    let mut raw = Raw::connect(&db).await;
    raw.begin().await;
    let held = db.store.insert_in(raw.connection(), vec![new(500).key("held")], NOW).await.unwrap()[0];
    let store = db.store.clone();
    let batch = tokio::spawn(async move {
        let tasks = (0..64).map(|n| if n == 40 { new(n).key("held") } else { new(n) }).collect();
        store.insert(tasks, NOW).await.unwrap()
    });
    if db.kind != Kind::Sqlite {
        while db.count("retry_task").await < 63 {
            tokio::task::yield_now().await;
        }
        assert!(!batch.is_finished());
    }
    raw.commit().await;
    let answers = batch.await.unwrap();
    assert_eq!((answers[40].id, answers[40].existed), (held.id, true));
    assert_eq!(answers.iter().filter(|a| !a.existed).count(), 63);
}

async fn the_key_is_free_again_when_the_task_is_done(db: Db) {
    let (task, node) = claimed(&db.store, new(1)).await;
    assert!(db.store.insert(vec![new(1)], NOW).await.unwrap()[0].existed, "while it runs");
    assert_eq!(end(&db.store, &task, Outcome::Done, NOW).await, Settled::Went(To::Done));
    assert_eq!(db.count("redrive_key").await, 0);
    let again = add(&db.store, new(1)).await;
    assert_ne!(again, task.id);
    // Waiting again keeps it.
    let task = claim_all(&db.store, node, NOW).await.tasks.pop().unwrap();
    end(&db.store, &task, timeout(), NOW).await;
    assert!(db.store.insert(vec![new(1)], NOW).await.unwrap()[0].existed);
}

async fn dead_and_cancelled_tasks_do_not_hold_their_key(db: Db) {
    let tasks = vec![new(1).dedup_for(Duration::from_secs(60)), new(2).dedup_for(Duration::from_secs(60))];
    let ids: Vec<_> = db.store.insert(tasks, NOW).await.unwrap().iter().map(|a| a.id).collect();
    db.store.cancel(ids[0], NOW).await.unwrap();
    db.store.fail(ids[1], NOW).await.unwrap();
    assert_eq!(db.count("redrive_key").await, 0);
    assert!(db.store.insert(vec![new(1), new(2)], NOW).await.unwrap().iter().all(|a| !a.existed));
}

async fn a_key_may_outlive_its_task(db: Db) {
    let (task, _) = claimed(&db.store, new(1).key("k").dedup_for(Duration::from_secs(60))).await;
    end(&db.store, &task, Outcome::Done, later(10)).await;
    assert_eq!(db.count("retry_task").await, 0);
    let again = db.store.insert(vec![new(1).key("k")], later(69)).await.unwrap()[0];
    assert_eq!((again.id, again.existed), (task.id, true), "59 s after it was done");
    let fresh = db.store.insert(vec![new(1).key("k")], later(70)).await.unwrap()[0];
    assert!(!fresh.existed && fresh.id != task.id, "60 s after");
    assert!(db.store.insert(vec![new(1).key("k")], later(71)).await.unwrap()[0].existed, "and held again");
}

async fn a_duplicate_may_replace_the_policy(db: Db) {
    let policy = |n| Arc::new(Policy { max_attempts: Some(n), ..Policy::default() });
    let id = add(&db.store, new(1).policy(policy(3))).await;
    let attempts = async || db.store.get(id).await.unwrap().unwrap().policy.max_attempts;
    db.store.insert(vec![new(1).policy(policy(5))], NOW).await.unwrap();
    assert_eq!(attempts().await, Some(3), "kept by default");
    let replacing = |n| new(1).policy(policy(n)).on_duplicate(OnDuplicate::ReplacePolicy);
    db.store.insert(vec![replacing(7)], NOW).await.unwrap();
    assert_eq!(attempts().await, Some(7));
    db.store.insert(vec![new(1), replacing(8), replacing(9)], NOW).await.unwrap();
    assert_eq!(attempts().await, Some(9), "the last one wins");
}

async fn a_duplicate_does_not_replace_a_callback_of_redrives_own(db: Db) {
    let own = Policy { on_final_failure: Some("redrive.told".into()), ..Policy::default() };
    let id = add(&db.store, new(1).policy(own)).await;
    let replacing = |n| {
        let policy = Policy { max_attempts: Some(n), on_final_failure: Some("mine".into()), ..Policy::default() };
        new(1).policy(policy).on_duplicate(OnDuplicate::ReplacePolicy)
    };
    let policy = async || {
        let policy = db.store.get(id).await.unwrap().unwrap().policy;
        (policy.max_attempts, policy.on_final_failure.clone().unwrap_or_default())
    };
    db.store.insert(vec![replacing(7)], NOW).await.unwrap();
    assert_eq!(policy().await, (Some(7), "redrive.told".into()));
    let mut raw = Raw::connect(&db).await;
    raw.begin().await;
    db.store.insert_in(raw.connection(), vec![replacing(8)], NOW).await.unwrap();
    raw.commit().await;
    assert_eq!(policy().await, (Some(8), "redrive.told".into()));
}

async fn tasks_without_a_key_are_never_merged(db: Db) {
    let tasks = || vec![new(1).no_key(), new(1).no_key()];
    db.store.insert(tasks(), NOW).await.unwrap();
    assert!(db.store.insert(tasks(), NOW).await.unwrap().iter().all(|a| !a.existed));
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await), (4, 0));
}

/// A holder ends while others ask for its key: each gets a task that lived when it was asked, none hangs, none fails.
async fn inserts_race_with_the_end_of_the_holder(db: Db) {
    let node = node(&db.store).await;
    for _ in 0..20 {
        add(&db.store, NewTask::new("m", &1).unwrap().key("k")).await;
        let task = claim_all(&db.store, node, NOW).await.tasks.pop().unwrap();
        let (ended, one, two) = tokio::join!(
            end(&db.store, &task, Outcome::Done, NOW),
            db.store.insert(vec![new(1).key("k")], NOW),
            db.store.insert(vec![new(2).key("k")], NOW),
        );
        assert_eq!(ended, Settled::Went(To::Done));
        let answers = [one.unwrap()[0], two.unwrap()[0]];
        let made: HashSet<_> = answers.iter().filter(|a| a.id != task.id).map(|a| a.id).collect();
        assert!(made.len() <= 1, "{answers:?}");
        assert_eq!(db.count("retry_task").await, made.len() as i64);
        for id in made {
            db.store.cancel(id, NOW).await.unwrap();
        }
    }
}

fn hot() -> NewTask {
    new(0).key("hot")
}

/// An application that takes the key in its own transaction, and keeps that open for a while if the key was free.
async fn hold_key_until(mut raw: Raw, store: Store, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::Acquire) {
        raw.begin().await;
        let held = store.insert_in(raw.connection(), vec![hot()], NOW).await;
        if held.as_ref().is_ok_and(|held| !held[0].existed) {
            _ = tokio::time::timeout(Duration::from_millis(70), std::future::pending::<()>()).await;
        }
        match held {
            Ok(_) => raw.commit().await,
            Err(_) => _ = raw.sql("ROLLBACK").await, // a deadlock may have ended it already
        }
    }
}

/// Ends whatever is due until it is over. Returns the ids under which each business id was claimed.
async fn end_until(store: Store, is_over: Arc<AtomicBool>) -> HashMap<String, HashSet<redrive::TaskId>> {
    let node = node(&store).await;
    let mut ids: HashMap<String, HashSet<redrive::TaskId>> = HashMap::new();
    loop {
        let was_over = is_over.load(Ordering::Acquire);
        let tasks = claim_all(&store, node, NOW).await.tasks;
        if tasks.is_empty() && was_over {
            return ids;
        }
        for task in tasks {
            end(&store, &task, Outcome::Done, NOW).await;
            if let Some(business) = task.business {
                ids.entry(business.id).or_default().insert(task.id);
            }
        }
    }
}

/// Batches of two tasks without a key and one whose key other transactions take, hold and release. A key that comes free
/// between two rounds of an insert must not make the batch write its other tasks again. `REDRIVE_TEST_HOT_CALLS` says how many
/// calls without a key there are.
async fn a_contended_key_does_not_repeat_the_rest_of_its_batch(db: Db) {
    const CALLERS: u64 = 6;
    let calls = std::env::var("REDRIVE_TEST_HOT_CALLS").map_or(3_600, |calls| calls.parse().unwrap());
    let batches: u64 = calls / (CALLERS * 2);
    if db.kind == Kind::Sqlite {
        return; // an open transaction holds the whole file: no insert is between its rounds
    }
    let (callers_done, holders_done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (mut holders, mut callers) = (tokio::task::JoinSet::new(), tokio::task::JoinSet::new());
    for _ in 0..3 {
        holders.spawn(hold_key_until(Raw::connect(&db).await, db.another().await, callers_done.clone()));
    }
    for caller in 0..CALLERS {
        let store = db.another().await;
        callers.spawn(async move {
            for batch in 0..batches {
                let plain = |n: u64| new(n).no_key().business("call", format!("{caller}-{batch}-{n}"));
                store.insert(vec![plain(1), hot(), plain(2)], NOW).await.unwrap();
            }
        });
    }
    let ended = tokio::spawn(end_until(db.another().await, holders_done.clone()));
    callers.join_all().await;
    callers_done.store(true, Ordering::Release);
    holders.join_all().await;
    holders_done.store(true, Ordering::Release);
    let ids = ended.await.unwrap();
    let twice = ids.values().filter(|ids| ids.len() > 1).count();
    println!("{} calls without a key, {twice} of them under two ids", ids.len());
    assert_eq!((ids.len() as u64, twice), (CALLERS * batches * 2, 0), "each call under one id");
}
