//! A caller that goes away, at each moment.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use redrive::Persist;

use crate::harness::{Db, moment, stores};
use crate::pay::{Answer, Shop, pay, slow};

stores!(
    dropped_at_each_await_under_retry_only_it_is_written_down_or_not_at_all,
    dropped_at_each_await_under_always_it_is_made_good,
    dropped_at_each_await_under_never_it_is_gone,
);

/// Polls a future `polls` times with time for others in between, then drops it. `true`: it ended before.
async fn polled<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

/// How often the future is polled before it is dropped, in turn.
const MOMENTS: [usize; 12] = [0, 1, 2, 3, 4, 5, 8, 16, 64, 256, 1024, 4096];

async fn dropped_at_each_await_under_retry_only_it_is_written_down_or_not_at_all(db: Db) {
    for (order, polls) in MOMENTS.into_iter().enumerate() {
        let mut shop = Shop::open(&db, [Answer::Timeout]).await;
        let before = db.count("retry_task").await;
        let ended = polled(shop.redrive.call(pay(order as u64).policy(slow())), polls).await;
        let tried = shop.tries.try_recv().is_ok();
        // The try failed, so it is being written down whether the caller is there or not.
        while tried && db.count("retry_task").await == before {
            moment().await;
        }
        assert!(tried || !ended);
        shop.close().await;
        assert_eq!(db.count("retry_task").await - before, i64::from(tried), "after {polls} polls");
    }
}

async fn dropped_at_each_await_under_always_it_is_made_good(db: Db) {
    for (order, polls) in MOMENTS.into_iter().enumerate() {
        let mut shop = Shop::open(&db, []).await;
        let begun = polls > 0;
        polled(shop.redrive.call(pay(order as u64).persist(Persist::Always)), polls).await;
        if begun {
            shop.next_try().await; // by the caller, or by the engine later
        }
        while db.count("retry_task").await > 0 {
            moment().await;
        }
        shop.close().await;
    }
    // Dropped in the middle of a try.
    let mut shop = Shop::open(&db, [Answer::Hang]).await;
    let redrive = shop.redrive.clone();
    let calling = tokio::spawn(async move { _ = redrive.call(pay(99).persist(Persist::Always)).await });
    let first = shop.next_try().await;
    calling.abort();
    let second = shop.next_try().await;
    assert_eq!((first.id, first.attempt), (second.id, second.attempt), "given back, uncounted");
    shop.close().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn dropped_at_each_await_under_never_it_is_gone(db: Db) {
    for polls in MOMENTS {
        let shop = Shop::open(&db, vec![Answer::Timeout; 3]).await;
        polled(shop.redrive.call(pay(1).persist(Persist::Never)), polls).await;
        shop.close().await;
    }
    assert_eq!(db.count("retry_task").await, 0);
}
