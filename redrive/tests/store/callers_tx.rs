//! Tasks in a transaction of the application's own.

use redrive::store::Tx;

use crate::harness::*;

layouts!(
    a_committed_transaction_brings_its_tasks,
    a_rolled_back_transaction_leaves_nothing,
    a_task_committed_late_is_still_found,
    a_deadlocked_transaction_fails_whole_and_is_not_repeated,
    a_transaction_of_the_store_does_both,
    an_existing_key_is_named_inside_a_transaction,
    a_key_that_was_taken_since_is_named_or_the_transaction_begins_again,
    bad_input_leaves_the_transaction_usable,
    a_plain_insert_inside_ones_own_write_transaction_says_why,
);

async fn business_table(db: &Db) {
    let engine = if db.kind == Kind::MySql { "ENGINE=InnoDB" } else { "" };
    db.sql(&format!("CREATE TABLE orders (id BIGINT PRIMARY KEY, n BIGINT NOT NULL) {engine}")).await;
    db.sql("INSERT INTO orders VALUES (1, 0), (2, 0)").await;
}

async fn a_committed_transaction_brings_its_tasks(db: Db) {
    business_table(&db).await;
    let mut raw = Raw::connect(&db).await;
    raw.begin().await;
    raw.sql("INSERT INTO orders VALUES (3, 0)").await.unwrap();
    let answers = db.store.insert_in(raw.connection(), vec![new(1), new(2).no_key()], NOW).await.unwrap();
    assert_eq!(db.count("retry_task").await, 0, "not before it commits");
    raw.commit().await;
    assert_eq!((db.count("retry_task").await, db.count("orders").await), (2, 3));
    assert!(db.store.get(answers[0].id).await.unwrap().is_some());
}

async fn a_rolled_back_transaction_leaves_nothing(db: Db) {
    business_table(&db).await;
    let mut raw = Raw::connect(&db).await;
    raw.begin().await;
    raw.sql("INSERT INTO orders VALUES (3, 0)").await.unwrap();
    db.store.insert_in(raw.connection(), vec![new(1)], NOW).await.unwrap();
    raw.sql("ROLLBACK").await.unwrap();
    assert_eq!((db.count("retry_task").await, db.count("redrive_key").await, db.count("orders").await), (0, 0, 2));
    add(&db.store, new(1)).await; // its key is free
}

/// Its due time lies behind what was scanned meanwhile.
async fn a_task_committed_late_is_still_found(db: Db) {
    let node = node(&db.store).await;
    let mut raw = Raw::connect(&db).await;
    raw.begin().await;
    let late = db.store.insert_in(raw.connection(), vec![new(1)], NOW).await.unwrap()[0].id;
    if db.kind != Kind::Sqlite {
        add(&db.store, new(2)).await;
        assert_eq!(claim_all(&db.store, node, later(60)).await.tasks.len(), 1);
    }
    raw.commit().await;
    let found = claim_all(&db.store, node, later(61)).await.tasks;
    assert_eq!(found.iter().map(|t| t.id).collect::<Vec<_>>(), [late]);
}

async fn a_deadlocked_transaction_fails_whole_and_is_not_repeated(db: Db) {
    if db.kind == Kind::Sqlite {
        // One writer: a second transaction cannot even begin, so there is nothing to deadlock.
        let mut one = Raw::connect(&db).await;
        one.begin().await;
        let mut two = Raw::connect(&db).await;
        two.sql("PRAGMA busy_timeout = 0").await.unwrap();
        assert!(two.sql("BEGIN IMMEDIATE").await.is_err());
        return;
    }
    business_table(&db).await;
    let (mut one, mut two) = (Raw::connect(&db).await, Raw::connect(&db).await);
    one.begin().await;
    two.begin().await;
    one.sql("UPDATE orders SET n = n + 1 WHERE id = 1").await.unwrap();
    // `two` holds the key that `one` will want, and then wants the row that `one` has.
    db.store.insert_in(two.connection(), vec![new(1).key("k")], NOW).await.unwrap();
    let wants_row = async {
        let result = two.sql("UPDATE orders SET n = n + 1 WHERE id = 1").await;
        (result.is_ok(), two)
    };
    let wants_key = async {
        let result = db.store.insert_in(one.connection(), vec![new(2).key("k")], NOW).await;
        if result.is_err() {
            _ = one.sql("ROLLBACK").await; // lets `two` go on, on PostgreSQL; on MySQL it is rolled back already
        } else {
            one.commit().await;
        }
        result
    };
    let ((row, mut two), key) = tokio::join!(wants_row, wants_key);
    assert!(row != key.is_ok(), "one of the two is the victim");
    if let Err(e) = key {
        assert!(e.is_transient(), "{e}");
    }
    _ = two.sql(if row { "COMMIT" } else { "ROLLBACK" }).await;
    let (tasks, orders) = (db.count("retry_task").await, db.sql("SELECT n FROM orders WHERE id = 1").await.unwrap());
    assert_eq!((tasks, orders), (1, 1), "the survivor's task with the survivor's row, nothing of the victim");
}

async fn a_transaction_of_the_store_does_both(db: Db) {
    business_table(&db).await;
    let mut tx: Tx = db.store.begin().await.unwrap();
    db.store.insert_in(&mut tx, vec![new(1)], NOW).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = db.store.begin().await.unwrap();
    db.store.insert_in(&mut tx, vec![new(2)], NOW).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = db.store.begin().await.unwrap();
    db.store.insert_in(&mut tx, vec![new(3)], NOW).await.unwrap();
    drop(tx);
    assert_eq!(db.store.list(&Default::default(), 10).await.unwrap().len(), 1);
}

async fn an_existing_key_is_named_inside_a_transaction(db: Db) {
    let id = add(&db.store, new(1)).await;
    let mut tx = db.store.begin().await.unwrap();
    let answers = db.store.insert_in(&mut tx, vec![new(2), new(1), new(2)], NOW).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(answers.iter().map(|a| a.existed).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(answers[1].id, id);
}

/// The caller's snapshot is older than the task that has the key.
async fn a_key_that_was_taken_since_is_named_or_the_transaction_begins_again(db: Db) {
    if db.kind == Kind::Sqlite {
        return; // nobody else writes while a transaction of the caller is open
    }
    for (n, strict) in [(1, false), (2, true)] {
        let mut raw = Raw::connect(&db).await;
        let strict = raw.snapshot_isolation(strict).await && strict;
        raw.begin().await;
        raw.sql("SELECT COUNT(*) FROM redrive_node").await.unwrap();
        let id = add(&db.store, new(n)).await;
        if strict {
            let e = db.store.insert_in(raw.connection(), vec![new(n)], NOW).await.unwrap_err();
            assert!(e.is_transient(), "{e}");
            raw.sql("ROLLBACK").await.unwrap();
            raw.begin().await;
        }
        let answers = db.store.insert_in(raw.connection(), vec![new(n)], NOW).await.unwrap();
        assert_eq!((answers[0].id, answers[0].existed), (id, true));
        raw.commit().await;
    }
}

async fn bad_input_leaves_the_transaction_usable(db: Db) {
    let mut tx = db.store.begin().await.unwrap();
    db.store.insert_in(&mut tx, vec![new(1)], NOW).await.unwrap();
    assert!(db.store.insert_in(&mut tx, vec![new(2).key("")], NOW).await.is_err());
    tx.commit().await.unwrap();
    assert_eq!(db.count("retry_task").await, 1);
}

async fn a_plain_insert_inside_ones_own_write_transaction_says_why(db: Db) {
    let mut quick = options();
    quick.connect_timeout = std::time::Duration::from_millis(200);
    quick.retry_for = std::time::Duration::ZERO;
    let store = redrive::Store::open_with(&db.url, quick).await.unwrap();
    let tx = store.begin().await.unwrap();
    let plain = store.insert(vec![new(1)], NOW).await;
    if db.kind == Kind::Sqlite {
        let said = plain.unwrap_err().to_string();
        assert!(said.contains("use the *_in functions"), "{said}");
    } else {
        plain.unwrap(); // another connection: not in the transaction, and nothing in the way
    }
    tx.rollback().await.unwrap();
}
