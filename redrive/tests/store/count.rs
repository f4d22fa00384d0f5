//! How much there is.

use redrive::store::{Count, Exactness, MOST_EXACT, Overview};
use redrive::{DeadReason, NewTask, Outcome};

use crate::harness::*;

layouts!(an_overview_counts_everything, many_are_counted_up_to_a_bound,);

fn exact(n: u64) -> Count {
    Count { n, exactness: Exactness::Exact }
}

async fn overview(db: &Db) -> Overview {
    let store = db.store.clone();
    tokio::spawn(async move { store.overview().await }).await.unwrap().unwrap()
}

async fn an_overview_counts_everything(db: Db) {
    let empty = overview(&db).await;
    assert_eq!((empty.pending, empty.running, empty.dead, empty.methods.len()), (exact(0), exact(0), exact(0), 0));
    add_many(&db.store, 3).await;
    let me = node(&db.store).await;
    let running = claim_all(&db.store, me, NOW).await.tasks;
    let mut waits = Vec::new();
    for n in 10..17 {
        waits.push(add(&db.store, new(n)).await);
    }
    for id in &waits[..2] {
        db.store.fail(*id, NOW).await.unwrap();
    }
    db.store.cancel(waits[2], NOW).await.unwrap();
    end(&db.store, &running[0], Outcome::Done, NOW).await;
    add(&db.store, NewTask::new("other", &1).unwrap()).await;
    db.store.pause("other", None, NOW).await.unwrap();
    let seen = overview(&db).await;
    assert_eq!((seen.pending, seen.running), (exact(4 + 1), exact(2)));
    assert_eq!((empty.oldest_running, seen.oldest_running), (None, running[1].locked_at));
    assert_eq!((seen.dead, seen.archived), (exact(2), exact(1)));
    assert_eq!(seen.dead_by_reason, [(DeadReason::FailedByHand, exact(2))]);
    let of = |name: &str| seen.methods.iter().find(|m| m.method == name).unwrap();
    assert_eq!((of("m").tasks, of("m").dead, of("m").paused), (exact(6), exact(2), false));
    assert_eq!((of("other").tasks, of("other").oldest_due, of("other").paused), (exact(1), Some(NOW), true));
}

/// More than anyone counts: by statistics where there are some.
async fn many_are_counted_up_to_a_bound(db: Db) {
    add_many(&db.store, 1_000).await;
    let columns = "next_retry_time, created_at, updated_at, lane, shard, method_name, params_json";
    for doubled in 0..7 {
        let further = 1i64 << (30 + doubled);
        db.sql(&format!("INSERT INTO retry_task (id, {columns}) SELECT id + {further}, {columns} FROM retry_task"))
            .await;
    }
    match db.kind {
        Kind::Sqlite => {}
        Kind::Postgres => _ = db.sql("ANALYZE retry_task").await,
        Kind::MySql => _ = db.sql("ANALYZE TABLE retry_task").await,
    }
    let me = node(&db.store).await;
    let claimed = db.store.claim_due(&slices(), me, NOW, 5).await.unwrap().tasks.len() as u64;
    let seen = overview(&db).await;
    if db.is_monthly() {
        // Each of its tables is small enough.
        assert_eq!((seen.pending, seen.methods[0].tasks), (exact(128_000 - claimed), exact(128_000)));
        return;
    }
    assert_eq!(
        seen.running,
        Count { n: claimed, exactness: Exactness::Estimate },
        "they are looked for where they are"
    );
    assert!(seen.pending.is_estimate() && seen.pending.n >= MOST_EXACT - claimed, "{:?}", seen.pending);
    let tasks = seen.methods[0].tasks;
    if db.kind == Kind::Sqlite {
        assert_eq!(tasks, Count { n: MOST_EXACT, exactness: Exactness::AtLeast });
    } else {
        assert!(tasks.exactness == Exactness::Estimate && (110_000..150_000).contains(&tasks.n), "{tasks:?}");
    }
}
