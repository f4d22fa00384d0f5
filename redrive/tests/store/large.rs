//! More than goes into one statement.

use redrive::NewTask;
use redrive::store::Redriven;

use crate::harness::*;

stores!(letters_of_any_size_are_moved_together);

/// More than a server takes in one statement: 16 MiB, by default.
async fn letters_of_any_size_are_moved_together(db: Db) {
    let large = |n| NewTask::new("m", &format!("{n}{}", "x".repeat(200 << 10))).unwrap();
    let mut ids = Vec::new();
    for n in 0..140 {
        let id = add(&db.store, large(n)).await;
        db.store.fail(id, NOW).await.unwrap();
        ids.push(id);
    }
    let went = db.store.redrive(&ids[..130], None, "alice", later(1)).await.unwrap();
    assert!(went.iter().all(|went| matches!(went, Redriven::As(_))), "{went:?}");
    assert_eq!(db.store.discard(&ids[130..], "alice", None, later(1)).await.unwrap(), 10);
    let counts = (db.count("retry_task").await, db.count("retry_dead").await, db.count("retry_archive").await);
    assert_eq!(counts, (130, 0, 140));
}
