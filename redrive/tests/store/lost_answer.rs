//! An insert whose answer was lost, while somebody else holds one of its keys: it is there once. And others who write at the same time.
//!
//! SQLite is not asked: between it and us no answer is lost.

use std::time::Duration;

use redrive::Outcome;
use redrive::store::{Fault, Faults, KeyWalk, Retention};

use crate::harness::*;

mod postgres {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_after_a_lost_answer_does_not_write_twice() {
        super::a_lock_after_a_lost_answer_does_not_write_twice(crate::harness::Kind::Postgres).await;
    }

    #[tokio::test]
    async fn of_all_who_enqueue_each_has_a_slot_of_its_own() {
        super::of_all_who_enqueue_each_has_a_slot_of_its_own(crate::harness::Kind::Postgres).await;
    }

    #[tokio::test]
    async fn after_a_restore_two_stores_of_one_number_move_apart() {
        super::after_a_restore_two_stores_of_one_number_move_apart(crate::harness::Kind::Postgres).await;
    }

    #[tokio::test]
    async fn old_keys_are_removed_while_somebody_holds_others() {
        super::old_keys_are_removed_while_somebody_holds_others(crate::harness::Kind::Postgres).await;
    }
}

mod mysql {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_after_a_lost_answer_does_not_write_twice() {
        super::a_lock_after_a_lost_answer_does_not_write_twice(crate::harness::Kind::MySql).await;
    }

    #[tokio::test]
    async fn of_all_who_enqueue_each_has_a_slot_of_its_own() {
        super::of_all_who_enqueue_each_has_a_slot_of_its_own(crate::harness::Kind::MySql).await;
    }

    #[tokio::test]
    async fn after_a_restore_two_stores_of_one_number_move_apart() {
        super::after_a_restore_two_stores_of_one_number_move_apart(crate::harness::Kind::MySql).await;
    }

    #[tokio::test]
    async fn old_keys_are_removed_while_somebody_holds_others() {
        super::old_keys_are_removed_while_somebody_holds_others(crate::harness::Kind::MySql).await;
    }
}

/// The first try is committed and its answer lost. Before the second, another transaction locks the key, for longer than an
/// insert waits for a lock: the second try must not take that for "nothing was written" and write the rest under new ids.
async fn a_lock_after_a_lost_answer_does_not_write_twice(kind: Kind) {
    let faults = Faults::default();
    let (url, _dir) = fresh_url(kind).await;
    let mut options = options();
    options.faults = Some(faults.clone());
    let db = Db::at(kind, url, options).await;
    add(&db.store, new(0)).await; // so that the store has its turn
    faults.next_write(Fault::FailAfterCommit);
    faults.next_write(Fault::Delay(Duration::from_millis(500)));
    let asked = vec![new(1), new(2).no_key(), new(3).no_key()];
    let (answers, ()) = tokio::join!(db.store.insert(asked, NOW), hold_the_keys(&db));
    let answers = answers.unwrap();
    assert!(faults.are_spent());
    assert!(answers.iter().all(|answer| !answer.existed), "{answers:?}");
    assert_eq!(db.count("retry_task").await, 4);
    for answer in answers {
        assert!(db.store.get(answer.id).await.unwrap().is_some(), "{answer:?}");
    }
}

/// Locks all keys as soon as there are two, for two seconds.
async fn hold_the_keys(db: &Db) {
    let mut other = Raw::connect(db).await;
    let (level, sleep) = match db.kind {
        Kind::MySql => ("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SELECT SLEEP(2)"),
        _ => ("SET default_transaction_isolation = 'read committed'", "SELECT CAST(pg_sleep(2) AS TEXT)"),
    };
    other.sql(level).await.unwrap();
    while other.sql("SELECT COUNT(*) FROM redrive_key").await.unwrap() != Some(2) {}
    other.sql("BEGIN").await.unwrap();
    other.sql("SELECT task_id FROM redrive_key FOR UPDATE").await.unwrap();
    other.sql(sleep).await.ok(); // its answer is no number
    other.sql("COMMIT").await.unwrap();
}

/// Slots come round after 1,024 stores. Of two that live, ids could be the same.
async fn of_all_who_enqueue_each_has_a_slot_of_its_own(kind: Kind) {
    let (url, _dir) = fresh_url(kind).await;
    let db = Db::at(kind, url, options()).await;
    let slot = |id: redrive::TaskId| (id.as_i64() >> 6) % 1024;
    let mut slots = vec![slot(add(&db.store, new(0)).await)];
    for n in 1..4 {
        db.sql("UPDATE redrive_counter SET value = value + 1023 WHERE name = 'slot'").await;
        let other = db.another().await;
        add(&other, new(n)).await; // of this one the slot may still be the other's
        slots.push(slot(add(&other, new(n + 100)).await));
    }
    let found = slots.clone();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 4, "{found:?}");
}

/// The counter of stores has gone back: the next store gets the number of one that lives. No enqueue fails, and none waits for long.
async fn after_a_restore_two_stores_of_one_number_move_apart(kind: Kind) {
    let (url, _dir) = fresh_url(kind).await;
    let db = Db::at(kind, url, options()).await;
    let slot = |id: redrive::TaskId| (id.as_i64() >> 6) % 1024;
    let one = slot(add(&db.store, new(0)).await);
    db.sql("UPDATE redrive_counter SET value = value - 1 WHERE name = 'slot'").await;
    let other = db.another().await;
    let enqueued = async { (add(&other, new(1)).await, add(&other, new(2)).await, add(&db.store, new(3)).await) };
    let (_, two, three) =
        tokio::time::timeout(Duration::from_secs(5), enqueued).await.expect("a turn is not waited for");
    assert_ne!(slot(two), one);
    assert_eq!(slot(three), one);
    // A restore takes the rows of the turns with it.
    db.sql("DELETE FROM redrive_counter WHERE name LIKE 'insert/%'").await;
    db.sql("UPDATE redrive_counter SET value = value - 2 WHERE name = 'slot'").await;
    let third = db.another().await;
    add(&third, new(4)).await;
    let four = slot(add(&third, new(5)).await);
    _ = db.store.insert(vec![new(6)], NOW).await; // its turn is gone: what became of it is not known
    add(&db.store, new(7)).await; // it had its id before the slot was looked at
    assert_ne!(slot(add(&db.store, new(8)).await), four);
}

/// A transaction that has written a key may stay open for long.
async fn old_keys_are_removed_while_somebody_holds_others(kind: Kind) {
    let (url, _dir) = fresh_url(kind).await;
    let db = Db::at(kind, url, options()).await;
    let (task, _) = claimed(&db.store, new(1).key("old").dedup_for(Duration::from_secs(60))).await;
    end(&db.store, &task, Outcome::Done, NOW).await;
    let keys: Vec<_> = (2..40).map(new).collect();
    let mut open = db.store.begin().await.unwrap();
    db.store.insert_in(&mut open, keys, NOW).await.unwrap();
    let sweeping = async { db.store.sweep_old(&Retention::default(), &mut KeyWalk::default(), later(100)).await };
    let swept = tokio::time::timeout(Duration::from_secs(5), sweeping).await.expect("it waits for the transaction");
    assert_eq!(swept.unwrap().keys, 1);
    open.commit().await.unwrap();
}
