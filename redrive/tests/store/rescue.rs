use std::collections::HashSet;
use std::sync::Arc;

use redrive::store::DeadFilter;
use redrive::{DeadReason, Lane, OnCrash, Outcome, Policy, Status, Task, To};

use crate::harness::*;

layouts!(
    what_a_fenced_node_held_waits_again,
    only_fenced_nodes_are_rescued_from,
    a_task_that_keeps_killing_nodes_is_dead,
    on_crash_dead_is_not_run_again_unseen,
    a_cancelled_task_of_a_dead_node_is_cancelled,
    two_rescuers_take_each_task_once,
    a_rescue_reads_only_its_slices,
    a_node_that_was_forgotten_is_rescued_from_too,
    a_backlog_behind_the_running_tasks_is_not_in_the_way,
    what_lies_behind_a_backlog_is_found,
    one_that_the_database_refuses_does_not_keep_the_others_from_being_taken_back,
    nor_does_one_whose_row_somebody_holds,
);

async fn what_a_fenced_node_held_waits_again(db: Db) {
    let (task, dead) = claimed(&db.store, new(1)).await;
    assert!(db.store.fence(dead, 0).await.unwrap());
    let rescued = db.store.rescue(&lanes(), later(9), 10).await.unwrap().tasks;
    assert_eq!(rescued, [(task.clone().into(), To::Pending { due: task.due })]);
    let t = db.store.get(task.id).await.unwrap().unwrap();
    assert_eq!((t.status, t.attempts, t.crashes, t.due), (Status::Pending, 0, 1, task.due));
    assert_eq!(t.last_error.unwrap().kind.as_str(), "crash");
    let live = node(&db.store).await;
    assert_eq!(claim_all(&db.store, live, later(9)).await.tasks.len(), 1);
}

async fn only_fenced_nodes_are_rescued_from(db: Db) {
    let (task, _) = claimed(&db.store, new(1)).await;
    assert!(db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks.is_empty(), "nobody fenced it");
    assert_eq!(db.store.get(task.id).await.unwrap().unwrap(), task);
}

async fn a_task_that_keeps_killing_nodes_is_dead(db: Db) {
    let id = add(&db.store, new(1)).await;
    for crash in 1..=3 {
        let victim = node(&db.store).await;
        assert_eq!(claim_all(&db.store, victim, NOW).await.tasks.len(), 1);
        assert!(db.store.fence(victim, 0).await.unwrap());
        let (_, to) = db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks.pop().unwrap();
        assert_eq!(to.is_final(), crash == 3);
    }
    let letter = db.store.get_dead(id).await.unwrap().unwrap();
    assert_eq!((letter.reason, letter.task.crashes, letter.task.attempts), (DeadReason::Crashed, 3, 0));
    assert_eq!(db.count("retry_task").await, 0);
}

async fn on_crash_dead_is_not_run_again_unseen(db: Db) {
    let policy = Policy { on_crash: OnCrash::Dead, ..Policy::default() };
    let (task, victim) = claimed(&db.store, new(1).policy(policy)).await;
    db.store.fence(victim, 0).await.unwrap();
    db.store.rescue(&lanes(), NOW, 10).await.unwrap();
    assert_eq!(db.store.get_dead(task.id).await.unwrap().unwrap().reason, DeadReason::Crashed);
}

async fn a_cancelled_task_of_a_dead_node_is_cancelled(db: Db) {
    let (task, victim) = claimed(&db.store, new(1)).await;
    db.store.cancel(task.id, NOW).await.unwrap();
    db.store.fence(victim, 0).await.unwrap();
    let rescued = db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks;
    assert_eq!(rescued.iter().map(|(_, to)| *to).collect::<Vec<_>>(), [To::Cancelled]);
    assert_eq!((db.count("retry_task").await, db.count("retry_archive").await), (0, 1));
}

async fn two_rescuers_take_each_task_once(db: Db) {
    let victim = node(&db.store).await;
    add_many(&db.store, 300).await;
    assert_eq!(claim_all(&db.store, victim, NOW).await.tasks.len(), 300);
    db.store.fence(victim, 0).await.unwrap();
    let (other, all) = (db.another().await, lanes());
    let (one, two) = tokio::join!(db.store.rescue(&all, NOW, 1000), other.rescue(&all, NOW, 1000));
    assert_eq!(one.unwrap().tasks.len() + two.unwrap().tasks.len(), 300);
    assert_eq!(db.sql("SELECT COUNT(*) FROM retry_task WHERE status = 0 AND crashes = 1").await, Some(300));
    assert!(db.store.dead(&DeadFilter::default(), 10).await.unwrap().is_empty());
}

async fn a_rescue_reads_only_its_slices(db: Db) {
    let victim = node(&db.store).await;
    add_many(&db.store, 100).await;
    let held = claim_all(&db.store, victim, NOW).await.tasks;
    db.store.fence(victim, 0).await.unwrap();
    let even = [(Lane::of("m"), 0x5555_5555_5555_5555)];
    let rescued = db.store.rescue(&even, NOW, 1000).await.unwrap().tasks;
    assert_eq!(rescued.len(), held.iter().filter(|t| t.shard() % 2 == 0).count());
    assert!(rescued.iter().all(|(t, _)| t.shard() % 2 == 0));
    assert_eq!(end(&db.store, &held[0], Outcome::Done, NOW).await, redrive::store::Settled::Lost);
}

async fn a_node_that_was_forgotten_is_rescued_from_too(db: Db) {
    let (task, victim) = claimed(&db.store, new(1)).await;
    db.store.fence(victim, 0).await.unwrap();
    db.sql("DELETE FROM redrive_node").await;
    let rescued = db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks;
    assert_eq!(rescued.iter().map(|(t, _)| t.id).collect::<Vec<_>>(), [task.id]);
}

async fn a_backlog_behind_the_running_tasks_is_not_in_the_way(db: Db) {
    let victim = node(&db.store).await;
    add_many(&db.store, 100).await;
    assert_eq!(claim_all(&db.store, victim, NOW).await.tasks.len(), 100);
    let backlog = (0..3_000).map(|n| new(n).no_key().business("b", "1").at(later(1))).collect();
    db.store.insert(backlog, NOW).await.unwrap();
    db.store.fence(victim, 0).await.unwrap();
    assert_eq!(db.store.rescue(&lanes(), later(2), 1_000).await.unwrap().tasks.len(), 100);
}

/// Its business id had its turn before the others', which had reached their limit.
async fn what_lies_behind_a_backlog_is_found(db: Db) {
    let victim = node(&db.store).await;
    add(&db.store, new(0).business("order", "1").at(later(5))).await;
    let task = claim_all(&db.store, victim, later(6)).await.tasks.pop().unwrap();
    let crowd = (1..400).map(|n| new(n).business("order", "1")).collect();
    db.store.insert(crowd, NOW).await.unwrap();
    let held = db.store.held_by(&lanes(), victim, later(9), later(9), 10).await.unwrap();
    assert_eq!(held.iter().map(|task| task.id).collect::<Vec<_>>(), [task.id], "by a node that looks for strays");
    assert!(db.store.fence(victim, 0).await.unwrap());
    let rescued = db.store.rescue(&lanes(), later(9), 10).await.unwrap();
    assert_eq!(rescued.tasks.iter().map(|(task, _)| task.id).collect::<Vec<_>>(), [task.id], "by a rescue");
    assert_eq!(rescued.left, 0);
}

async fn one_that_the_database_refuses_does_not_keep_the_others_from_being_taken_back(db: Db) {
    let ids = |rescued: Vec<(Arc<Task>, To)>| rescued.iter().map(|(task, _)| task.id).collect::<HashSet<_>>();
    let victim = node(&db.store).await;
    let once = Policy { on_crash: OnCrash::Dead, ..Policy::default() };
    let refused = add(&db.store, new(13).policy(once.clone())).await;
    let others = [add(&db.store, new(12).policy(once.clone())).await, add(&db.store, new(14).policy(once)).await];
    let waits = add(&db.store, new(15)).await;
    assert_eq!(claim_all(&db.store, victim, NOW).await.tasks.len(), 4);
    db.store.fence(victim, 0).await.unwrap();
    let ((refuse, allow), mut raw) = (refusal(db.kind), Raw::connect(&db).await);
    raw.sql(refuse).await.unwrap();
    let rescued = ids(db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks);
    assert_eq!(rescued, HashSet::from([others[0], others[1], waits]));
    assert_eq!(db.store.get(refused).await.unwrap().unwrap().status, Status::Running);
    assert!(db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks.is_empty());
    raw.sql(allow).await.unwrap();
    assert_eq!(ids(db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks), HashSet::from([refused]));
}

/// A person in the middle of a transaction by hand, say. SQLite has no locks on rows: there all wait.
async fn nor_does_one_whose_row_somebody_holds(db: Db) {
    let victim = node(&db.store).await;
    let (held, other) = (add(&db.store, new(1)).await, add(&db.store, new(2)).await);
    assert_eq!(claim_all(&db.store, victim, NOW).await.tasks.len(), 2);
    db.store.fence(victim, 0).await.unwrap();
    let mut raw = Raw::connect(&db).await;
    if db.kind != Kind::Sqlite {
        raw.begin().await;
        for table in [vec!["retry_task".into()], db.tables("task").await].concat() {
            raw.sql(&format!("SELECT id FROM {table} WHERE id = {held} FOR UPDATE")).await.unwrap();
        }
        let rescued = db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks;
        assert_eq!(rescued.iter().map(|(task, _)| task.id).collect::<Vec<_>>(), [other]);
        raw.sql("ROLLBACK").await.unwrap();
    }
    let rest = db.store.rescue(&lanes(), NOW, 10).await.unwrap().tasks;
    assert_eq!(rest.len(), if db.kind == Kind::Sqlite { 2 } else { 1 });
}
