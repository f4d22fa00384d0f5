//! Transactions whose snapshot is older than what stands in their way: they are told the truth, or to begin again, but never
//! what the snapshot says.

use redrive::barrier::Op;
use serde_json::json;

use crate::harness::*;
use crate::party::*;

stores!(
    under_read_committed_a_place_that_was_taken_since_is_seen,
    under_repeatable_read_a_place_that_was_taken_since_is_seen,
    under_serializable_a_place_that_was_taken_since_is_seen,
    a_lock_that_is_not_to_be_had_is_said_and_may_be_asked_for_again,
);

async fn under_read_committed_a_place_that_was_taken_since_is_seen(db: Db) {
    taken_since(&db, "READ COMMITTED").await;
}

async fn under_repeatable_read_a_place_that_was_taken_since_is_seen(db: Db) {
    taken_since(&db, "REPEATABLE READ").await;
}

async fn under_serializable_a_place_that_was_taken_since_is_seen(db: Db) {
    taken_since(&db, "SERIALIZABLE").await;
}

async fn taken_since(db: &Db, level: &str) {
    for (first, then, right) in [
        (Op::Run, Op::Run, duplicate(Op::Run)),
        (Op::Undo, Op::Run, Said::Dangling),
        (Op::Run, Op::Undo, Said::Proceed),
        (Op::Undo, Op::Undo, Said::NullUndo),
        (Op::Run, Op::Confirm, Said::Proceed),
        (Op::Undo, Op::Confirm, Said::Dangling),
    ] {
        let mut late = looking(db, level).await;
        done(db, first).await;
        let said = late.enter_keeping(&key(then), json!("late")).await;
        match (db.kind, &said) {
            (Kind::Postgres, Ok(_)) => assert_eq!(level, "READ COMMITTED", "{first}, then {then}"),
            (Kind::Postgres, Err(_)) => assert_ne!(level, "READ COMMITTED", "{first}, then {then}"),
            (Kind::Sqlite, _) => assert!(said.is_err(), "it has read, so it cannot write any more"),
            (Kind::MySql, _) => {} // MariaDB 11.8 says "begin again", others tell what is right
        }
        let said = match said {
            Ok(said) => {
                late.commit().await;
                said
            }
            Err(e) => {
                assert!(e.is_transient(), "{e}");
                late.roll_back().await;
                done(db, then).await
            }
        };
        assert_eq!(said, right, "{first}, then {then}");
        db.sql("DELETE FROM redrive_barrier").await;
    }
}

/// One that has begun at this level and looked at something: where the level says so, it sees everything as of now.
async fn looking(db: &Db, level: &str) -> Party {
    let mut party = Party::of(db).await;
    let begin = match db.kind {
        Kind::Sqlite => "BEGIN".to_owned(), // has but one level
        Kind::Postgres => format!("BEGIN ISOLATION LEVEL {level}"),
        Kind::MySql => format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}; BEGIN"),
    };
    party.raw.sql(&begin).await.unwrap();
    // Not the barrier's own table, which a SERIALIZABLE look would lock on MySQL.
    party.raw.sql("SELECT version FROM redrive_schema").await.unwrap();
    party
}

async fn a_lock_that_is_not_to_be_had_is_said_and_may_be_asked_for_again(db: Db) {
    let mut first = Party::begun(&db).await;
    first.enter(&key(Op::Run)).await;
    let mut second = Party::of(&db).await;
    let (impatient, begin) = match db.kind {
        Kind::Sqlite => ("PRAGMA busy_timeout = 0", "BEGIN"),
        Kind::Postgres => ("SET lock_timeout = '20ms'", "BEGIN"),
        Kind::MySql => ("SET innodb_lock_wait_timeout = 1", "BEGIN"),
    };
    second.raw.sql(impatient).await.unwrap();
    second.raw.sql(begin).await.unwrap();
    let e = second.try_enter(&key(Op::Undo)).await.unwrap_err();
    assert!(e.is_transient(), "{e}");
    second.raw.sql("ROLLBACK").await.unwrap();
    first.commit().await;
    second.raw.sql(begin).await.unwrap();
    assert_eq!(second.enter(&key(Op::Undo)).await, Said::Proceed);
    second.commit().await;
}
