//! An insert whose answer was lost, while somebody else holds one of its keys: it is there once.
//!
//! SQLite is not asked: between it and us no answer is lost.

use std::time::Duration;

use redrive::store::{Fault, Faults};

use crate::harness::*;

mod postgres {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_after_a_lost_answer_does_not_write_twice() {
        super::a_lock_after_a_lost_answer_does_not_write_twice(crate::harness::Kind::Postgres).await;
    }
}

mod mysql {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_after_a_lost_answer_does_not_write_twice() {
        super::a_lock_after_a_lost_answer_does_not_write_twice(crate::harness::Kind::MySql).await;
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
