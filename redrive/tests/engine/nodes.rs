//! Several nodes, and what happens when one is gone.

use std::collections::HashMap;
use std::time::Duration;

use redrive::store::{Registration, Slice};
use redrive::{Context, Engine, EngineConfig, Lane, NewTask, SHARDS, Status, Timestamp, Verdict};
use tokio::sync::mpsc;

use crate::harness::{Db, layouts, new};

layouts!(
    two_nodes_share_the_work,
    what_a_dead_node_held_is_done_by_another,
    a_node_that_was_declared_dead_goes_on_under_a_new_number,
    nodes_leave_each_others_methods_alone,
    a_claim_that_was_lost_is_given_back,
    a_task_for_another_node_runs_soon,
);

fn config(name: &str) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.name = name.into();
    config.scan_interval = Duration::from_millis(50);
    config.sweep_interval = Duration::from_millis(200);
    config.beat_interval = Duration::from_millis(100);
    config.lease = Duration::from_millis(1_000);
    config.margin = Duration::from_millis(300);
    config.grace = Duration::from_secs(5);
    config
}

async fn node(db: &Db, name: &'static str, method: &str, done: &mpsc::UnboundedSender<(&'static str, u64)>) -> Engine {
    let done = done.clone();
    let handler = move |_: Context, n: u64| {
        _ = done.send((name, n));
        std::future::ready(Ok::<(), Verdict>(()))
    };
    Engine::builder(db.another().await).config(config(name)).register(method, handler).start().await.unwrap()
}

fn slices() -> Vec<Slice> {
    (0..SHARDS).map(|shard| Slice { lane: Lane::of("m"), shard, from: Timestamp::EPOCH }).collect()
}

async fn two_nodes_share_the_work(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let (a, b) = (node(&db, "a", "m", &done).await, node(&db, "b", "m", &done).await);
    let mut by: HashMap<&str, u32> = HashMap::new();
    let mut first = 0;
    // Until both have seen each other and each has had its share.
    while by.len() < 2 {
        db.store.insert((first..first + 200).map(new).collect(), db.store.now().await.unwrap()).await.unwrap();
        for _ in 0..200 {
            let (who, _) = calls.recv().await.unwrap();
            *by.entry(who).or_default() += 1;
        }
        first += 200;
    }
    a.stop().await;
    b.stop().await;
    assert!(calls.try_recv().is_err(), "each task once");
    assert_eq!(db.count("retry_task").await, 0);
}

async fn what_a_dead_node_held_is_done_by_another(db: Db) {
    // A node that registers, claims, and is never heard of again.
    let now = db.store.now().await.unwrap();
    let who = Registration { name: "gone".into(), build: "1".into(), methods: vec!["m".into()] };
    let gone = db.store.register(&who, now).await.unwrap();
    db.store.insert((0..20).map(new).collect(), now).await.unwrap();
    assert_eq!(db.store.claim_due(&slices(), gone, now, 100).await.unwrap().tasks.len(), 20);
    let (done, mut calls) = mpsc::unbounded_channel();
    let a = node(&db, "a", "m", &done).await;
    for _ in 0..20 {
        calls.recv().await.unwrap();
    }
    a.stop().await;
    assert!(calls.try_recv().is_err());
    assert_eq!(db.count("retry_task").await, 0);
    let nodes = db.store.nodes().await.unwrap();
    assert!(nodes.iter().all(|n| n.dead), "and the one that stopped says so itself: {nodes:?}");
}

async fn a_node_that_was_declared_dead_goes_on_under_a_new_number(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let a = node(&db, "a", "m", &done).await;
    let number = db.store.nodes().await.unwrap()[0].number;
    // Someone believes it dead.
    while !db.store.fence(number, db.store.nodes().await.unwrap()[0].beat).await.unwrap() {}
    loop {
        let nodes = db.store.nodes().await.unwrap();
        if nodes.iter().any(|n| !n.dead && n.number > number) {
            break;
        }
    }
    a.enqueue(new(1)).await.unwrap();
    assert_eq!(calls.recv().await, Some(("a", 1)));
    a.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn nodes_leave_each_others_methods_alone(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let (a, b) = (node(&db, "a", "m", &done).await, node(&db, "b", "other", &done).await);
    let now = db.store.now().await.unwrap();
    let tasks = (0..50).flat_map(|n| [new(n), NewTask::new("other", &(n + 100)).unwrap()]).collect();
    db.store.insert(tasks, now).await.unwrap();
    for _ in 0..100 {
        let (who, n) = calls.recv().await.unwrap();
        assert_eq!(who == "b", n >= 100);
    }
    a.stop().await;
    b.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

/// As if the answer to a claim had been lost for good: the row bears the node's number, and the node knows nothing of it.
async fn a_claim_that_was_lost_is_given_back(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let a = node(&db, "a", "m", &done).await;
    let me = db.store.nodes().await.unwrap()[0].number;
    let long_ago = db.store.now().await.unwrap() - Duration::from_secs(60);
    let id = db.store.insert(vec![new(3).running_on(me)], long_ago).await.unwrap()[0].id;
    assert_eq!(db.store.get(id).await.unwrap().unwrap().status, Status::Running);
    assert_eq!(calls.recv().await, Some(("a", 3)));
    a.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

/// Enqueued on a node that does not handle it. On PostgreSQL the other is woken; elsewhere its scan finds it.
async fn a_task_for_another_node_runs_soon(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let idle = node(&db, "idle", "other", &done).await;
    let done = done.clone();
    let handler = move |_: Context, n: u64| {
        _ = done.send(("busy", n));
        std::future::ready(Ok::<(), Verdict>(()))
    };
    let mut patient = config("busy");
    if db.kind == crate::harness::Kind::Postgres {
        patient.scan_interval = Duration::from_secs(600); // only a wake-up can be quicker than the test's own patience
        patient.sweep_interval = Duration::from_secs(600);
    }
    let busy = Engine::builder(db.another().await).config(patient).register("m", handler).start().await.unwrap();
    for n in 0..20 {
        idle.enqueue(new(n)).await.unwrap();
        assert_eq!(calls.recv().await, Some(("busy", n)));
    }
    idle.stop().await;
    busy.stop().await;
}
