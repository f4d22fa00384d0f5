//! Methods that are split: their tasks are scheduled by parts, such as the hosts that they call.

use std::sync::Arc;
use std::time::Duration;

use redrive::store::TaskFilter;
use redrive::{Context, Engine, EngineConfig, MethodOptions, NewTask, Status, Verdict};
use tokio::sync::{Semaphore, mpsc};

use crate::harness::{Db, moment, stores_and_months};

stores_and_months!(
    a_part_that_hangs_does_not_hold_up_the_others,
    parts_that_others_enqueue_are_found,
    a_part_has_limits_of_its_own,
    a_pause_holds_for_all_parts,
    hundreds_of_parts_are_read_as_a_whole,
);

fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_millis(100);
    config.sweep_interval = Duration::from_millis(500);
    config.beat_interval = Duration::from_millis(100);
    config.concurrency = 100;
    config
}

/// A call of a host.
fn of(host: &str, n: u64) -> NewTask {
    NewTask::new("http", &format!("{host} {n}")).unwrap().no_key().part(host)
}

/// Tells what is called; what is called of `slow` waits for the semaphore.
fn builder(store: redrive::Store, slow: &Arc<Semaphore>) -> (redrive::Builder, mpsc::UnboundedReceiver<String>) {
    let (called, calls) = mpsc::unbounded_channel();
    let slow = slow.clone();
    let handler = move |_: Context<'static>, call: String| {
        let (called, slow) = (called.clone(), slow.clone());
        async move {
            _ = called.send(call.clone());
            if call.starts_with("slow") {
                _ = slow.acquire().await;
            }
            Ok::<(), Verdict>(())
        }
    };
    let options = MethodOptions::default().concurrency(5);
    let builder = Engine::builder(store).config(config()).register_with("http", options, handler).split("http");
    (builder, calls)
}

async fn calls_of(calls: &mut mpsc::UnboundedReceiver<String>, n: usize) -> Vec<String> {
    let mut all = Vec::new();
    while all.len() < n {
        all.push(calls.recv().await.unwrap());
    }
    all
}

/// More tasks of one host than there are slots on the node, and none of them ends.
async fn a_part_that_hangs_does_not_hold_up_the_others(db: Db) {
    db.store.insert((0..500).map(|n| of("slow", n)).collect(), db.store.now().await.unwrap()).await.unwrap();
    let slow = Arc::new(Semaphore::new(0));
    let (builder, mut calls) = builder(db.another().await, &slow);
    let engine = builder.start().await.unwrap();
    assert!(calls_of(&mut calls, 5).await.iter().all(|call| call.starts_with("slow")));
    engine.enqueue_many((0..200).map(|n| of(&format!("host{}", n % 20), n))).await.unwrap();
    let others = calls_of(&mut calls, 200).await;
    assert!(others.iter().all(|call| call.starts_with("host")), "no more of the slow one than its share");
    slow.add_permits(1_000);
    calls_of(&mut calls, 495).await;
    engine.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn parts_that_others_enqueue_are_found(db: Db) {
    let (builder, mut calls) = builder(db.another().await, &Arc::new(Semaphore::new(0)));
    let engine = builder.start().await.unwrap();
    for round in 0..3 {
        let tasks = (0..10).map(|n| of(&format!("host{n} of {round}"), n)).collect();
        db.store.insert(tasks, db.store.now().await.unwrap()).await.unwrap();
        calls_of(&mut calls, 10).await;
    }
    engine.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

/// More than are read by their slices; one of them has much, one is enqueued later.
async fn hundreds_of_parts_are_read_as_a_whole(db: Db) {
    let now = db.store.now().await.unwrap();
    let small = (0..600).map(|n| of(&format!("host{}", n % 300), n));
    let large = (600..1_000).map(|n| of("large", n));
    db.store.insert(small.chain(large).collect(), now).await.unwrap();
    let (builder, mut calls) = builder(db.another().await, &Arc::new(Semaphore::new(0)));
    let engine = builder.start().await.unwrap();
    let mut seen = calls_of(&mut calls, 1_000).await;
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 1_000, "each once");
    let later = (0..200).map(|n| of(&format!("host{n}"), n)).chain([of("late", 0)]).collect();
    db.store.insert(later, db.store.now().await.unwrap()).await.unwrap();
    assert!(calls_of(&mut calls, 201).await.contains(&"late 0".into()));
    engine.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn a_part_has_limits_of_its_own(db: Db) {
    let slow = Arc::new(Semaphore::new(0));
    let (builder, mut calls) = builder(db.another().await, &slow);
    let one = MethodOptions::default().concurrency(1);
    let engine = builder.limit_part("http", "slow.example", one).start().await.unwrap();
    engine.enqueue_many((0..8).map(|n| of("slow.example", n)).chain((0..8).map(|n| of("slow.org", n)))).await.unwrap();
    calls_of(&mut calls, 6).await; // one of the first, five of the other
    engine.enqueue(of("end", 0)).await.unwrap();
    assert_eq!(calls.recv().await.unwrap(), "end 0", "nothing else has begun");
    slow.add_permits(1_000);
    calls_of(&mut calls, 10).await;
    engine.stop().await;
}

async fn a_pause_holds_for_all_parts(db: Db) {
    let (builder, mut calls) = builder(db.another().await, &Arc::new(Semaphore::new(0)));
    let engine = builder.start().await.unwrap();
    engine.enqueue(of("a", 0)).await.unwrap();
    calls_of(&mut calls, 1).await;
    while engine.stats().running > 0 {
        moment().await; // it has run, and is gone when that is written
    }
    engine.pause("http", Some("alice")).await.unwrap();
    engine.enqueue_many((1..5).map(|n| of(["a", "b"][n as usize % 2], n))).await.unwrap();
    let waiting = TaskFilter { method: Some("http".into()), status: Some(Status::Pending), ..TaskFilter::default() };
    assert_eq!(engine.list(&waiting, 10).await.unwrap().len(), 4, "found by their method, whatever their part");
    let depths = engine.store().depths().await.unwrap();
    assert!(depths.len() == 1 && depths[0].method == "http" && depths[0].depth == 4 && depths[0].oldest_due.is_some());
    assert!(calls.try_recv().is_err());
    engine.resume("http", Some("alice")).await.unwrap();
    calls_of(&mut calls, 4).await;
    engine.stop().await;
}
