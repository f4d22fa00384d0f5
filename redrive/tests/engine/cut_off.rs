//! Nodes whose connections to the database are held up or cut, by a proxy of our own. SQLite has no network to be cut.

use std::time::Duration;

use redrive::store::{Registration, Settle, Slice, StoreOptions};
use redrive::{Context, Engine, EngineConfig, Lane, Outcome, SHARDS, Store, Task, Timestamp, Verdict, settle};
use tokio::sync::mpsc;

use crate::harness::{Db, Kind, moment, new};
use crate::proxy::{Proxy, Wire};

/// Stamps tests for the databases that are behind a network.
macro_rules! servers {
    ($($test:ident),* $(,)?) => {
        mod postgres { $( #[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $test() {
            super::$test(super::Db::fresh(super::Kind::Postgres).await).await;
        } )* }
        mod mysql { $( #[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $test() {
            super::$test(super::Db::fresh(super::Kind::MySql).await).await;
        } )* }
    };
}

servers!(
    a_node_that_is_cut_off_stops_before_others_take_its_work_and_comes_back,
    an_insert_whose_answer_was_lost_is_written_once,
    an_insert_that_arrives_late_is_written_once,
    a_database_that_says_nothing_is_asked_again,
);

fn config(name: &str) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.name = name.into();
    config.scan_interval = Duration::from_millis(50);
    config.sweep_interval = Duration::from_millis(200);
    config.beat_interval = Duration::from_millis(100);
    config.lease = Duration::from_millis(2_000);
    config.margin = Duration::from_millis(500);
    config.grace = Duration::from_millis(10);
    config
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Started(&'static str),
    Stopped(&'static str),
}

/// Says when a handler begins and when it is dropped without having ended.
struct Watched(&'static str, mpsc::UnboundedSender<Seen>);

impl Drop for Watched {
    fn drop(&mut self) {
        _ = self.1.send(Seen::Stopped(self.0));
    }
}

async fn node(store: Store, name: &'static str, seen: &mpsc::UnboundedSender<Seen>) -> Engine {
    let seen = seen.clone();
    let handler = move |_: Context, _: u64| {
        _ = seen.send(Seen::Started(name));
        let watched = Watched(name, seen.clone());
        async move {
            let () = std::future::pending().await;
            drop(watched);
            Ok::<(), Verdict>(())
        }
    };
    Engine::builder(store).config(config(name)).register("m", handler).start().await.unwrap()
}

async fn a_node_that_is_cut_off_stops_before_others_take_its_work_and_comes_back(db: Db) {
    let proxy = Proxy::before(&db.url).await;
    let (seen, mut events) = mpsc::unbounded_channel();
    let cut = node(Store::open(&proxy.url).await.unwrap(), "cut", &seen).await;
    let number = db.store.nodes().await.unwrap()[0].number;
    cut.enqueue(new(1)).await.unwrap();
    assert_eq!(events.recv().await, Some(Seen::Started("cut")));
    let other = node(db.another().await, "other", &seen).await;
    proxy.set(Wire::Held, Wire::Held);
    // First it stops by its own clock; only then can the other have fenced it and taken the task.
    assert_eq!(events.recv().await, Some(Seen::Stopped("cut")));
    assert_eq!(events.recv().await, Some(Seen::Started("other")));
    let nodes = db.store.nodes().await.unwrap();
    assert!(nodes.iter().any(|n| n.number == number && n.dead), "{nodes:?}");
    proxy.set(Wire::Open, Wire::Open);
    let back = async {
        loop {
            let nodes = db.store.nodes().await.unwrap();
            if nodes.iter().any(|n| n.registration.name == "cut" && n.number != number && !n.dead) {
                return;
            }
            moment().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back).await.expect("it comes back by itself");
    cut.stop().await;
    other.stop().await;
}

/// Runs all tasks to their end, by hand.
async fn run_all(db: &Db) -> usize {
    let node = db.store.register(&Registration::default(), db.store.now().await.unwrap()).await.unwrap();
    let slices: Vec<Slice> =
        (0..SHARDS).map(|shard| Slice { lane: Lane::of("m"), shard, from: Timestamp::EPOCH }).collect();
    let now = db.store.now().await.unwrap();
    let claimed = db.store.claim_due(&slices, node, now, 100).await.unwrap().tasks;
    let done = |task: &Task| Settle::new(task.clone(), settle(task, &Outcome::Done, now, 0.0));
    db.store.settle(&claimed.iter().map(done).collect::<Vec<_>>(), now).await.unwrap().len()
}

async fn until_there(db: &Db) {
    let there = async {
        while db.count("retry_task").await == 0 {
            moment().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), there).await.expect("the insert arrives");
}

/// The commit happened, its answer did not come; meanwhile others have run the tasks, and they are gone.
async fn an_insert_whose_answer_was_lost_is_written_once(db: Db) {
    let proxy = Proxy::before(&db.url).await;
    let store = Store::open(&proxy.url).await.unwrap();
    let now = db.store.now().await.unwrap();
    // So that connection, statement and turn are there.
    store.insert(vec![new(1).no_key(), new(1).key("one")], now).await.unwrap();
    assert_eq!(run_all(&db).await, 2);
    proxy.set(Wire::Open, Wire::Held);
    let asked = store.clone();
    let tasks = vec![new(2).no_key(), new(3).no_key(), new(4).key("four")];
    let insert = tokio::spawn(async move { asked.insert(tasks, now).await });
    if db.kind == Kind::Postgres {
        until_there(&db).await;
        assert_eq!(run_all(&db).await, 3);
    }
    proxy.set(Wire::Cut, Wire::Cut);
    proxy.set(Wire::Open, Wire::Open);
    let answers = insert.await.unwrap().unwrap();
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| !answer.existed));
    let left = if db.kind == Kind::Postgres { 0 } else { 3 };
    assert_eq!(db.count("retry_task").await, left, "not a second time");
}

/// The request is held up on its way; the next try is quicker; then the first arrives.
async fn an_insert_that_arrives_late_is_written_once(db: Db) {
    let proxy = Proxy::before(&db.url).await;
    let store = Store::open(&proxy.url).await.unwrap();
    let now = db.store.now().await.unwrap();
    store.insert(vec![new(1).no_key()], now).await.unwrap();
    assert_eq!(run_all(&db).await, 1);
    proxy.set(Wire::Held, Wire::Open);
    let asked = store.clone();
    let insert = tokio::spawn(async move { asked.insert(vec![new(2).no_key(), new(3)], now).await });
    tokio::task::yield_now().await;
    proxy.answers.send(Wire::Cut).unwrap(); // the client sees its connection end; its request is still on the way
    proxy.set(Wire::Open, Wire::Open);
    insert.await.unwrap().unwrap();
    assert_eq!(run_all(&db).await, 2);
    assert_eq!(run_all(&db).await, 0);
    assert_eq!(db.count("redrive_key").await, 0);
}

/// Nothing is refused and nothing is answered: after a while the connection is taken for lost, and what was asked for is not written twice though it
/// arrives in the end.
async fn a_database_that_says_nothing_is_asked_again(db: Db) {
    let mut proxy = Proxy::before(&db.url).await;
    let mut options = StoreOptions::default();
    options.answer_timeout = Duration::from_millis(200);
    options.retry_for = Duration::from_secs(60);
    let store = Store::open_with(&proxy.url, options).await.unwrap();
    let now = db.store.now().await.unwrap();
    store.insert(vec![new(1).no_key()], now).await.unwrap();
    proxy.set(Wire::Held, Wire::Held);
    let before = *proxy.connections.borrow_and_update();
    let asked = store.clone();
    let insert = tokio::spawn(async move { asked.insert(vec![new(2).no_key(), new(3)], now).await });
    proxy.connections.wait_for(|n| *n > before).await.unwrap();
    proxy.set(Wire::Open, Wire::Open);
    let answers = insert.await.unwrap().unwrap();
    assert!(answers.iter().all(|answer| !answer.existed));
    assert_eq!(run_all(&db).await, 3);
    assert_eq!((run_all(&db).await, db.count("redrive_key").await), (0, 0));
}
