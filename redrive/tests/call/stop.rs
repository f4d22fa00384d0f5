//! Source 2 §2.5 and §3.4: when retrying stops, and how long it waits.

use std::time::Duration;

use redrive::{
    Backoff, CallError, Cause, DeadReason, Failure, Jitter, NewTask, Outcome, Persist, Policy, Timestamp, To, settle,
};

use crate::harness::{Db, NOW, claim_all, moment, node, stores};
use crate::pay::{Answer, Shop, deferred, pay, quick, slow};

stores!(
    source_2_stops_at_max_attempts,
    source_2_stops_after_max_retry_duration_since_creation,
    source_2_stops_at_the_deadline,
    a_call_that_comes_too_late_is_not_tried,
    source_2_stops_when_it_is_failed_by_hand,
    source_2_stops_when_it_is_cancelled_by_hand,
    source_2_any_one_condition_is_enough,
    source_2_a_scan_does_not_run_what_is_past_its_conditions,
    source_2_exponential_backoff_is_2_4_8_seconds_and_up_to_one_more,
    source_2_the_interval_is_capped_before_jitter,
    source_2_fixed_interval,
    source_2_linear_interval,
);

/// The reason of the one dead letter, when it is there.
async fn reason(db: &Db) -> DeadReason {
    loop {
        if let [dead] = &*db.store.dead(&Default::default(), 10).await.unwrap() {
            return dead.reason;
        }
        moment().await;
    }
}

async fn source_2_stops_at_max_attempts(db: Db) {
    let mut shop = Shop::open(&db, vec![Answer::Timeout; 9]).await;
    deferred(shop.redrive.call(pay(1).policy(Policy { max_attempts: Some(4), ..quick(Policy::default()) })).await);
    for attempt in 1..=4 {
        assert_eq!(shop.next_try().await.attempt, attempt);
    }
    assert_eq!(reason(&db).await, DeadReason::Exhausted);
    shop.close().await;
}

async fn a_call_that_comes_too_late_is_not_tried(db: Db) {
    let mut shop = Shop::open(&db, []).await;
    let policy = || Policy { deadline: Some(Timestamp::from_millis(1)), ..slow() };
    for (order, persist) in [(1, Persist::Never), (2, Persist::Manual)] {
        let called = shop.redrive.call(pay(order).persist(persist).policy(policy())).await;
        let late = matches!(called, Err(CallError::Exhausted { task_id: None, cause: Cause::Expired(_) }));
        assert!(late, "{called:?}");
    }
    let mut ids = Vec::new();
    for (order, persist) in [(3, Persist::RetryOnly), (4, Persist::OnFailure), (5, Persist::Always)] {
        let called = shop.redrive.call(pay(order).persist(persist).policy(policy())).await;
        let Err(CallError::Exhausted { task_id: Some(id), cause: Cause::Expired(_) }) = called else {
            panic!("{called:?}")
        };
        ids.push(id);
    }
    for id in ids {
        let letter = loop {
            if let Some(letter) = db.store.get_dead(id).await.unwrap() {
                break letter;
            }
            moment().await;
        };
        assert_eq!((letter.reason, letter.task.attempts), (DeadReason::Expired, 0));
    }
    assert!(shop.tries.try_recv().is_err(), "nothing was tried");
    shop.close().await;
}

/// Far enough away for a first try on a busy machine.
const SOON: Duration = Duration::from_secs(1);

async fn source_2_stops_after_max_retry_duration_since_creation(db: Db) {
    let shop = Shop::open(&db, vec![Answer::Timeout; 1000]).await;
    let max_duration = Some(SOON);
    deferred(
        shop.redrive.call(pay(1).policy(Policy { max_duration, max_attempts: None, ..quick(Policy::default()) })).await,
    );
    assert_eq!(reason(&db).await, DeadReason::Expired);
    shop.close().await;
}

async fn source_2_stops_at_the_deadline(db: Db) {
    let shop = Shop::open(&db, vec![Answer::Timeout; 1000]).await;
    let deadline = Some(db.store.now().await.unwrap() + SOON);
    let policy = Policy { deadline, max_attempts: None, ..quick(Policy::default()) };
    deferred(shop.redrive.call(pay(1).policy(policy)).await);
    assert_eq!(reason(&db).await, DeadReason::Expired);
    shop.close().await;
}

async fn source_2_stops_when_it_is_failed_by_hand(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(slow())).await);
    shop.redrive.fail(id).await.unwrap();
    assert_eq!(reason(&db).await, DeadReason::FailedByHand);
    shop.close().await;
}

async fn source_2_stops_when_it_is_cancelled_by_hand(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(slow())).await);
    shop.redrive.cancel(id).await.unwrap();
    shop.close().await;
    assert_eq!((db.count("retry_task").await, db.count("retry_archive").await), (0, 1));
}

async fn source_2_any_one_condition_is_enough(db: Db) {
    let shop = Shop::open(&db, vec![Answer::Timeout; 3]).await;
    let hour = Some(Duration::from_secs(3600));
    let soon = Some(db.store.now().await.unwrap() + Duration::from_secs(60));
    let wide = Policy { max_attempts: Some(9), max_duration: hour.map(|h| h * 9), ..slow() };
    for narrow in [
        Policy { max_attempts: Some(1), ..wide.clone() },
        Policy { max_duration: hour, ..wide.clone() }, // the next try would come when it is over
        Policy { deadline: soon, ..wide.clone() },
    ] {
        let called = shop.redrive.call(pay(1).policy(narrow)).await;
        assert!(matches!(called, Err(CallError::Exhausted { .. })), "{called:?}");
    }
    shop.close().await;
}

async fn source_2_a_scan_does_not_run_what_is_past_its_conditions(db: Db) {
    let past = Policy { deadline: Some(Timestamp::from_millis(1)), ..Policy::default() };
    let now = db.store.now().await.unwrap();
    db.store
        .insert(vec![NewTask::new("pay", &serde_json::json!({"order": 1})).unwrap().policy(past)], now)
        .await
        .unwrap();
    let mut shop = Shop::open(&db, []).await;
    assert_eq!(reason(&db).await, DeadReason::Expired);
    assert!(shop.tries.try_recv().is_err());
    shop.close().await;
}

/// The waits after each failure that the database was told, for the least and the greatest chance.
async fn waits<const N: usize>(db: &Db, policy: Policy) -> [[u64; 2]; N] {
    let mut all = [[0; 2]; N];
    for (i, random) in [0.0, 1.0].into_iter().enumerate() {
        let policy = Policy { max_attempts: None, ..policy.clone() };
        let id = db.store.insert(vec![NewTask::new("m", &i).unwrap().policy(policy)], NOW).await.unwrap()[0].id;
        let (node, mut now) = (node(&db.store).await, NOW);
        for wait in &mut all {
            let task = claim_all(&db.store, node, now).await.tasks.pop().unwrap();
            let change = settle(&task, &Outcome::Failed(Failure::retry("timeout", "no answer")), now, random);
            assert!(matches!(change.to, To::Pending { .. }));
            db.store.settle(&[redrive::store::Settle::new(task, change)], now).await.unwrap();
            let due = db.store.get(id).await.unwrap().unwrap().due;
            wait[i] = due.since(now).as_millis() as u64;
            now = due;
        }
        db.store.cancel(id, now).await.unwrap();
    }
    all
}

async fn source_2_exponential_backoff_is_2_4_8_seconds_and_up_to_one_more(db: Db) {
    assert_eq!(waits(&db, Policy::default()).await, [[2000, 3000], [4000, 5000], [8000, 9000]]);
}

async fn source_2_the_interval_is_capped_before_jitter(db: Db) {
    let (second, most) = (Duration::from_secs(1), Duration::from_secs(5));
    let backoff = Backoff::exponential(second * 2, 2.0, most);
    let waits = waits(&db, Policy { backoff, jitter: Jitter::Add(second), ..Policy::default() }).await;
    assert_eq!(waits, [[2000, 3000], [4000, 5000], [5000, 6000], [5000, 6000]]);
}

async fn source_2_fixed_interval(db: Db) {
    let backoff = Backoff::fixed(Duration::from_secs(7));
    assert_eq!(waits(&db, Policy { backoff, jitter: Jitter::None, ..Policy::default() }).await, [[7000, 7000]; 3]);
}

async fn source_2_linear_interval(db: Db) {
    let backoff = Backoff::linear(Duration::from_secs(3), Duration::from_secs(600));
    let waits = waits(&db, Policy { backoff, jitter: Jitter::None, ..Policy::default() }).await;
    assert_eq!(waits, [[3000, 3000], [6000, 6000], [9000, 9000]]);
}
