use std::collections::HashSet;
use std::time::Duration;

use redrive::store::{DeadFilter, OverdueWalk, Slice};
use redrive::{Backoff, DeadReason, Failure, Lane, NewTask, Outcome, Policy, SHARDS, Status, Task, Timestamp};

use crate::harness::*;

layouts!(
    what_is_due_is_found_and_nothing_else,
    the_scan_looks_ahead_to_a_horizon,
    each_slice_has_its_own_limit_and_order,
    other_lanes_and_shards_are_not_read,
    rows_before_the_floor_are_passed_over,
    a_claimed_task_is_ours,
    a_claim_gives_all_that_a_task_has,
    two_claimers_on_the_same_rows_share_them,
    a_stale_version_claims_nothing,
    nothing_is_claimed_before_it_is_due,
    a_fenced_node_claims_nothing,
    a_node_that_never_registered_claims_nothing,
    what_ran_out_of_time_while_it_waited_does_not_run,
    a_task_at_its_attempt_limit_does_not_run,
    what_ran_out_of_time_where_nobody_reads_is_ended,
    what_the_database_refuses_to_end_holds_up_neither_a_walk_nor_a_claim,
    a_claim_moves_no_index_entry,
);

async fn what_is_due_is_found_and_nothing_else(db: Db) {
    let due = add(&db.store, new(1)).await;
    add(&db.store, new(2).delay(Duration::from_secs(1))).await;
    add(&db.store, NewTask::new("other", &1).unwrap()).await;
    let found = db.store.scan(&slices(), NOW, 10).await.unwrap();
    assert_eq!(found.iter().map(|d| (d.id, d.version, d.due)).collect::<Vec<_>>(), [(due, 0, NOW)]);
    assert!(db.store.scan(&slices(), NOW - Duration::from_millis(1), 10).await.unwrap().is_empty());
}

async fn the_scan_looks_ahead_to_a_horizon(db: Db) {
    for seconds in [5, 10, 15] {
        add(&db.store, new(seconds).delay(Duration::from_secs(seconds)).priority(seconds as i16)).await;
    }
    let mut found: Vec<_> =
        db.store.scan(&slices(), later(10), 10).await.unwrap().iter().map(|d| (d.due, d.priority)).collect();
    found.sort();
    assert_eq!(found, [(later(5), 5), (later(10), 10)]);
}

async fn each_slice_has_its_own_limit_and_order(db: Db) {
    // One business, so one shard; due in reverse order of their insert.
    let tasks = (0..10).map(|n| new(n).business("b", "1").at(NOW - Duration::from_secs(n))).collect();
    let ids: Vec<_> = db.store.insert(tasks, NOW).await.unwrap().iter().map(|a| a.id).collect();
    let shard = ids[0].shard();
    add(&db.store, new(99).business("b", "other")).await;
    let slices: Vec<_> = slices().into_iter().filter(|s| s.shard == shard).collect();
    let found: Vec<_> = db.store.scan(&slices, NOW, 3).await.unwrap().iter().map(|d| d.id).collect();
    assert_eq!(found, [ids[9], ids[8], ids[7]], "the earliest first");
}

async fn other_lanes_and_shards_are_not_read(db: Db) {
    let ids = add_many(&db.store, 200).await;
    let in_three: HashSet<_> = ids.iter().copied().filter(|id| id.shard() == 3).collect();
    let slice = Slice { lane: Lane::of("m"), shard: 3, from: Timestamp::EPOCH };
    let found: HashSet<_> = db.store.scan(&[slice], NOW, 1000).await.unwrap().iter().map(|d| d.id).collect();
    assert!(!in_three.is_empty() && found == in_three);
    assert!(db.store.scan(&slices_of("other"), NOW, 1000).await.unwrap().is_empty());
    // Any number of slices in one go, also one that is no power of two.
    let odd: Vec<_> = (0..SHARDS - 1).map(|shard| Slice { shard, ..slice }).collect();
    assert_eq!(
        db.store.scan(&odd, NOW, 1000).await.unwrap().len(),
        ids.iter().filter(|id| id.shard() < SHARDS - 1).count()
    );
    assert!(db.store.scan(&[], NOW, 1000).await.unwrap().is_empty());
}

async fn rows_before_the_floor_are_passed_over(db: Db) {
    add(&db.store, new(1).at(NOW - Duration::from_secs(10))).await;
    let kept = add(&db.store, new(2).at(NOW - Duration::from_secs(5))).await;
    let slices: Vec<_> = slices().into_iter().map(|s| Slice { from: NOW - Duration::from_secs(5), ..s }).collect();
    let found = db.store.scan(&slices, NOW, 10).await.unwrap();
    assert_eq!(found.iter().map(|d| d.id).collect::<Vec<_>>(), [kept], "the floor itself is read");
}

async fn a_claimed_task_is_ours(db: Db) {
    let node = node(&db.store).await;
    let id = add(&db.store, new(1)).await;
    let claimed = claim_all(&db.store, node, later(2)).await.tasks;
    let stored = db.store.get(id).await.unwrap().unwrap();
    assert_eq!(claimed, std::slice::from_ref(&stored), "the claim gives the whole task");
    assert_eq!(
        (stored.status, stored.locked_by, stored.locked_at, stored.version),
        (Status::Running, Some(node), Some(later(2)), 1)
    );
    assert!(claim_all(&db.store, node, later(2)).await.tasks.is_empty(), "once");
}

/// Most tasks have little; this one has everything.
async fn a_claim_gives_all_that_a_task_has(db: Db) {
    let policy = Policy {
        backoff: Backoff::fixed(Duration::from_secs(1)),
        max_attempts: Some(7),
        max_duration: Some(Duration::from_secs(500)),
        deadline: Some(later(600)),
        ..Policy::default()
    };
    let task = new(1).business("order", "o-1").policy(policy).traceparent("00-aa-bb-01").created_by("ada");
    let task = task.priority(3).dedup_for(Duration::from_secs(9));
    let (task, node) = claimed(&db.store, task).await;
    let error =
        Failure::retry(redrive::Kind::from("io \"quoted\" \u{e9}".to_owned()), "line one\nline \"two\" \u{1f980}");
    end(&db.store, &task, Outcome::Failed(error), later(1)).await;
    db.sql(&format!("UPDATE retry_task SET notified_at = {}", later(2).as_millis())).await;
    let due = db.store.scan(&slices(), later(60), 9).await.unwrap();
    let again = db.store.claim(&due, node, later(60)).await.unwrap().tasks;
    let stored = db.store.get(task.id).await.unwrap().unwrap();
    assert_eq!(again, std::slice::from_ref(&stored));
    assert_eq!((stored.attempts, stored.history.len(), stored.last_error.is_some()), (1, 1, true));
}

async fn two_claimers_on_the_same_rows_share_them(db: Db) {
    let stores = [db.store.clone(), db.another().await, db.another().await];
    let mut nodes = Vec::new();
    for store in &stores {
        nodes.push(node(store).await);
    }
    add_many(&db.store, 500).await;
    let due = db.store.scan(&slices(), NOW, 1000).await.unwrap();
    assert_eq!(due.len(), 500);
    let mut calls = tokio::task::JoinSet::new();
    for (store, node) in stores.into_iter().zip(nodes) {
        let due = due.clone();
        calls.spawn(async move { store.claim(&due, node, NOW).await.unwrap().tasks });
    }
    let claimed: Vec<_> = calls.join_all().await.into_iter().flatten().map(|t| t.id).collect();
    assert_eq!(claimed.len(), 500);
    assert_eq!(claimed.iter().collect::<HashSet<_>>().len(), 500, "each by one");
}

async fn a_stale_version_claims_nothing(db: Db) {
    let (task, node) = claimed(&db.store, new(1)).await;
    let seen = due_of(&redrive::Task { version: 0, ..task.clone() });
    assert!(db.store.claim(&[seen], node, NOW).await.unwrap().tasks.is_empty(), "it is running");
    end(&db.store, &task, redrive::Outcome::GivenBack, NOW).await;
    assert!(db.store.claim(&[seen], node, NOW).await.unwrap().tasks.is_empty(), "it waits again, at another version");
    assert_eq!(claim_all(&db.store, node, NOW).await.tasks.len(), 1);
}

async fn nothing_is_claimed_before_it_is_due(db: Db) {
    let node = node(&db.store).await;
    add(&db.store, new(1).delay(Duration::from_secs(10))).await;
    let due = db.store.scan(&slices(), later(20), 10).await.unwrap();
    assert!(db.store.claim(&due, node, later(9)).await.unwrap().tasks.is_empty());
    assert_eq!(db.store.claim(&due, node, later(10)).await.unwrap().tasks.len(), 1);
}

async fn a_fenced_node_claims_nothing(db: Db) {
    let node = node(&db.store).await;
    add(&db.store, new(1)).await;
    assert!(db.store.fence(node, 0).await.unwrap());
    assert!(claim_all(&db.store, node, NOW).await.tasks.is_empty());
}

async fn a_node_that_never_registered_claims_nothing(db: Db) {
    add(&db.store, new(1)).await;
    assert!(claim_all(&db.store, redrive::NodeNumber(77), NOW).await.tasks.is_empty());
}

async fn what_ran_out_of_time_while_it_waited_does_not_run(db: Db) {
    let node = node(&db.store).await;
    let by_deadline = Policy { deadline: Some(later(60)), ..Policy::default() };
    let by_duration = Policy { max_duration: Some(Duration::from_secs(60)), ..Policy::default() };
    let tasks = vec![new(1).policy(by_deadline), new(2).policy(by_duration), new(3)];
    db.store.insert(tasks, NOW).await.unwrap();
    let claimed = claim_all(&db.store, node, later(60)).await;
    assert_eq!((claimed.tasks.len(), claimed.spent.len()), (1, 2));
    let dead = db.store.dead(&DeadFilter::default(), 10).await.unwrap();
    assert!(dead.len() == 2 && dead.iter().all(|d| d.reason == DeadReason::Expired && d.task.attempts == 0));
    assert_eq!(db.count("retry_task").await, 1);
}

async fn a_task_at_its_attempt_limit_does_not_run(db: Db) {
    let (task, node) = claimed(&db.store, new(1)).await;
    end(&db.store, &task, timeout(), NOW).await;
    let one = Policy { max_attempts: Some(1), ..Policy::default() };
    db.store.edit_policy(task.id, &one.into(), Some("alice"), NOW).await.unwrap();
    let claimed = claim_all(&db.store, node, later(60)).await;
    assert_eq!((claimed.tasks.len(), claimed.spent.len()), (0, 1));
    assert_eq!(db.store.get_dead(task.id).await.unwrap().unwrap().reason, DeadReason::Exhausted);
}

async fn what_ran_out_of_time_where_nobody_reads_is_ended(db: Db) {
    let until = Policy { deadline: Some(later(10)), ..Policy::default() };
    let lasting = Policy { max_duration: Some(Duration::from_secs(20)), ..Policy::default() };
    let told = Policy { on_final_failure: Some("told".into()), ..until.clone() };
    let first = add(&db.store, new(1).policy(until)).await;
    let second = add(&db.store, new(2).policy(lasting)).await;
    let third = add(&db.store, new(3).policy(told)).await;
    add(&db.store, new(4)).await; // has all the time in the world
    let mut walk = OverdueWalk::default();
    let mut ended = async |seconds| {
        let ended = db.store.end_overdue(&mut walk, later(seconds)).await.unwrap();
        let mut ids: Vec<_> = ended.iter().map(|task| task.id).collect();
        ids.sort_unstable();
        ids
    };
    let mut both = [first, third];
    both.sort_unstable();
    assert!(ended(9).await.is_empty());
    assert_eq!(ended(10).await, both);
    assert_eq!(ended(20).await, [second]);
    assert!(ended(21).await.is_empty());
    for id in [first, second, third] {
        let letter = db.store.get_dead(id).await.unwrap().unwrap();
        assert_eq!((letter.reason, letter.task.attempts), (DeadReason::Expired, 0));
    }
    let told = db.store.scan(&slices_of("told"), later(60), 10).await.unwrap();
    assert_eq!(told.len(), 1, "its callback is made with its end");
}

async fn what_the_database_refuses_to_end_holds_up_neither_a_walk_nor_a_claim(db: Db) {
    let until = Policy { deadline: Some(later(10)), ..Policy::default() };
    let add = async |n| add(&db.store, new(n).policy(until.clone())).await;
    let ids = |tasks: Vec<Task>| tasks.iter().map(|task| task.id).collect::<HashSet<_>>();
    let (refused, others) = (add(13).await, HashSet::from([add(12).await, add(14).await]));
    let ((refuse, allow), mut raw) = (refusal(db.kind), Raw::connect(&db).await);
    raw.sql(refuse).await.unwrap();
    let mut walk = OverdueWalk::default();
    assert_eq!(ids(db.store.end_overdue(&mut walk, later(10)).await.unwrap()), others);
    let more = HashSet::from([add(11).await, add(15).await]);
    let node = node(&db.store).await;
    assert_eq!(ids(claim_all(&db.store, node, later(10)).await.spent), more);
    raw.sql(allow).await.unwrap();
    let held = db.store.get(refused).await.unwrap().unwrap();
    assert_eq!((held.status, held.locked_by), (Status::Running, Some(node)), "ours, until a sweep gives it back");
    end(&db.store, &held, Outcome::GivenBack, later(10)).await;
    assert_eq!(ids(db.store.end_overdue(&mut walk, later(10)).await.unwrap()), HashSet::from([refused]));
}

/// On PostgreSQL the statistics say so: every claim is a HOT update.
async fn a_claim_moves_no_index_entry(db: Db) {
    let node = node(&db.store).await;
    add_many(&db.store, 200).await;
    assert_eq!(claim_all(&db.store, node, NOW).await.tasks.len(), 200);
    if db.kind == Kind::Postgres {
        let (updated, hot) = (
            "SELECT pg_stat_get_tuples_updated('retry_task'::regclass)",
            "SELECT pg_stat_get_tuples_hot_updated('retry_task'::regclass)",
        );
        // Statistics arrive a little later; asking again until they are there is not a sleep.
        while db.sql(updated).await.unwrap() < 200 {}
        assert_eq!(db.sql(hot).await, Some(200));
    }
}
