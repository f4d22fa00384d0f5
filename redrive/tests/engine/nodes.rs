//! Several nodes, and what happens when one is gone.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::registry::{Answer, Member, Registry};
use redrive::store::{Registration, Slice};
use redrive::{
    Builder, Context, Engine, EngineConfig, Lane, NewTask, NodeNumber, SHARDS, Status, Store, Timestamp, Verdict,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::harness::{Db, Kind, new, options, stores_and_months};

stores_and_months!(
    two_nodes_share_the_work,
    what_a_dead_node_held_is_done_by_another,
    a_node_that_was_declared_dead_goes_on_under_a_new_number,
    a_node_that_the_database_does_not_know_goes_on_under_a_new_number,
    nodes_leave_each_others_methods_alone,
    a_claim_that_was_lost_is_given_back,
    a_task_for_another_node_runs_soon,
    a_join_and_a_leave_are_known_long_before_the_next_beat,
    a_draining_leave_hands_over_while_it_drains,
    a_rolling_deploy_adds_a_method,
    a_node_goes_on_when_its_registry_is_gone_for_a_while_and_stops_looking_when_it_stays_gone,
    a_node_goes_on_when_its_registry_panics,
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

type Done = mpsc::UnboundedSender<(&'static str, u64)>;

/// A node that tells which tasks it has done.
async fn prepared(db: &Db, name: &'static str, config: EngineConfig, methods: &[&str], done: &Done) -> Builder {
    let mut builder = Engine::builder(db.another().await).config(config);
    for method in methods {
        let done = done.clone();
        builder = builder.register(*method, move |_: Context, n: u64| {
            _ = done.send((name, n));
            std::future::ready(Ok::<(), Verdict>(()))
        });
    }
    builder
}

async fn node(db: &Db, name: &'static str, method: &str, done: &Done) -> Engine {
    prepared(db, name, config(name), &[method], done).await.start().await.unwrap()
}

/// So seldom does it beat, and renew its view by the beat, that whatever it knows sooner it knows in another way.
fn slow(name: &str) -> EngineConfig {
    let mut slow = config(name);
    slow.beat_interval = Duration::from_secs(300);
    slow.lease = Duration::from_secs(900);
    slow.margin = Duration::from_secs(200);
    slow.grace = Duration::from_secs(300);
    slow
}

/// Waits until it is so; the database, which is asked in between, is slow enough for that.
async fn until(db: &Db, what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            db.store.nodes().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
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
    let who =
        Registration { name: "gone".into(), build: "1".into(), methods: vec!["m".into()], ..Registration::default() };
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

/// As after a restore, or a failover to a server that had not heard of it: its row is gone, or, since the database gives its number out
/// again, is another's.
async fn a_node_that_the_database_does_not_know_goes_on_under_a_new_number(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let a = node(&db, "a", "m", &done).await;
    for (n, change) in [(1, "DELETE FROM redrive_node"), (2, "UPDATE redrive_node SET started_at = started_at + 1")] {
        let number = a.number();
        db.sql(&format!("{change} WHERE number = {number}")).await;
        until(&db, "another number", || a.number() > number).await;
        a.enqueue(new(n)).await.unwrap();
        assert_eq!(calls.recv().await, Some(("a", n)));
    }
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
    if db.kind == Kind::Postgres {
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

async fn a_join_and_a_leave_are_known_long_before_the_next_beat(db: Db) {
    let (done, _calls) = mpsc::unbounded_channel();
    let a = prepared(&db, "a", slow("a"), &["m"], &done).await.start().await.unwrap();
    assert_eq!(a.shards("m").len(), 64);
    let b = prepared(&db, "b", slow("b"), &["m"], &done).await.start().await.unwrap();
    assert_eq!(b.shards("m").len(), 32, "who joins knows it at once");
    until(&db, "a hears of b", || a.shards("m").len() == 32).await;
    let both: BTreeSet<u8> = a.shards("m").into_iter().chain(b.shards("m")).collect();
    assert_eq!(both.len(), 64);
    a.stop().await;
    assert!(a.shards("m").is_empty());
    until(&db, "b hears that a is gone", || b.shards("m").len() == 64).await;
    b.stop().await;
}

async fn a_draining_leave_hands_over_while_it_drains(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let (held, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let hold = {
        let (held, release) = (held.clone(), release.clone());
        move |_: Context, _: u64| {
            let (held, release) = (held.clone(), release.clone());
            async move {
                held.notify_one();
                release.notified().await;
                Ok::<(), Verdict>(())
            }
        }
    };
    let a = prepared(&db, "a", slow("a"), &["m"], &done).await.register("hold", hold).start().await.unwrap();
    let b = prepared(&db, "b", slow("b"), &["m"], &done).await.start().await.unwrap();
    until(&db, "a hears of b", || a.shards("m").len() == 32).await;
    a.enqueue(NewTask::new("hold", &0u64).unwrap()).await.unwrap();
    held.notified().await;

    let leaving = tokio::spawn({
        let a = a.clone();
        async move { a.stop().await }
    });
    while !db.store.nodes().await.unwrap().iter().any(|n| n.leaving) {}
    db.store.insert((0..200).map(new).collect(), db.store.now().await.unwrap()).await.unwrap();
    for _ in 0..200 {
        let (who, _) = tokio::time::timeout(Duration::from_secs(60), calls.recv()).await.unwrap().unwrap();
        assert_eq!(who, "b", "of all shards, those that were a's too");
    }
    assert!(!leaving.is_finished(), "and a is still at it");
    release.notify_one();
    leaving.await.unwrap();
    b.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn a_rolling_deploy_adds_a_method(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let (old, older) = (node(&db, "old", "m", &done).await, node(&db, "older", "m", &done).await);
    // Some part of the new release is up already, and enqueues what no node can handle yet.
    let now = db.store.now().await.unwrap();
    let added = |n: u64| NewTask::new("added", &n).unwrap();
    let ids = db.store.insert((1_000..1_050).map(added).collect(), now).await.unwrap();
    db.store.insert((0..50).map(new).collect(), now).await.unwrap();
    for _ in 0..50 {
        assert!(calls.recv().await.unwrap().1 < 50);
    }
    for id in ids {
        let task = db.store.get(id.id).await.unwrap().unwrap();
        assert_eq!((task.status, task.version), (Status::Pending, 0), "nobody has touched it");
    }
    let newer = prepared(&db, "newer", config("newer"), &["m", "added"], &done).await.start().await.unwrap();
    for _ in 0..50 {
        let (who, n) = calls.recv().await.unwrap();
        assert_eq!((who, n >= 1_000), ("newer", true));
    }
    until(&db, "three share the one method", || old.shards("m").len() + newer.shards("m").len() < 64).await;
    assert_eq!((newer.shards("added").len(), old.shards("added").len()), (64, 0));
    older.stop().await;
    old.stop().await;
    until(&db, "the new one is alone", || newer.shards("m").len() == 64).await;
    newer.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

/// A registry that can be out of reach.
#[derive(Clone, Debug, Default)]
struct Unsteady(Arc<Mutex<(bool, BTreeSet<NodeNumber>)>>);

impl Unsteady {
    fn set_down(&self, down: bool) {
        self.0.lock().unwrap().0 = down;
    }

    fn answer<T>(&self, answer: impl FnOnce(&mut BTreeSet<NodeNumber>) -> T) -> Result<T, redrive::registry::Trouble> {
        let mut state = self.0.lock().unwrap();
        if state.0 { Err("out of reach".into()) } else { Ok(answer(&mut state.1)) }
    }
}

impl Registry for Unsteady {
    fn join<'a>(&'a self, member: &'a Member) -> Answer<'a, ()> {
        Box::pin(async { self.answer(|all| _ = all.insert(member.number)) })
    }

    fn leave(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn view(&self) -> Answer<'_, Vec<NodeNumber>> {
        Box::pin(async { self.answer(|all| all.iter().copied().collect()) })
    }
}

async fn a_node_goes_on_when_its_registry_is_gone_for_a_while_and_stops_looking_when_it_stays_gone(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let registry = Unsteady::default();
    let mut settings = redrive::Settings::default();
    settings.registry.keep_view_for = Duration::from_secs(5);
    let builder = prepared(&db, "a", config("a"), &["m"], &done).await;
    let a = builder.settings(settings).registry(registry.clone()).start().await.unwrap();
    assert_eq!(a.shards("m").len(), 64);
    registry.set_down(true);
    for n in 0..5 {
        a.enqueue(new(n)).await.unwrap();
        assert_eq!(calls.recv().await, Some(("a", n)), "it goes on with the view that it has");
    }
    until(&db, "the view is too old", || a.shards("m").is_empty()).await;
    let id = a.enqueue(new(5)).await.unwrap().id;
    assert_eq!(db.store.get(id).await.unwrap().unwrap().status, Status::Pending, "enqueues go on");
    assert!(!db.store.nodes().await.unwrap()[0].dead, "and so does the beat");
    assert!(calls.try_recv().is_err());
    registry.set_down(false);
    assert_eq!(calls.recv().await, Some(("a", 5)), "it comes back by itself");
    a.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

/// A registry with code that panics, once, when it is told to.
#[derive(Clone, Debug, Default)]
struct Frail {
    steady: Unsteady,
    view: Arc<AtomicBool>,
    changed: Arc<AtomicBool>,
}

fn panic_once(told: &AtomicBool) {
    assert!(!told.swap(false, Ordering::AcqRel), "on purpose");
}

impl Registry for Frail {
    fn join<'a>(&'a self, member: &'a Member) -> Answer<'a, ()> {
        self.steady.join(member)
    }

    fn leave(&self) -> Answer<'_, ()> {
        self.steady.leave()
    }

    fn view(&self) -> Answer<'_, Vec<NodeNumber>> {
        panic_once(&self.view);
        self.steady.view()
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        panic_once(&self.changed);
        Box::pin(std::future::pending())
    }
}

async fn a_node_goes_on_when_its_registry_panics(db: Db) {
    let (done, mut calls) = mpsc::unbounded_channel();
    let registry = Frail::default();
    let start = async |name| {
        let builder = prepared(&db, name, config(name), &["m"], &done).await;
        builder.registry(registry.clone()).start().await.unwrap()
    };
    let a = start("a").await;
    for (n, told) in [(0, &registry.view), (1, &registry.changed)] {
        told.store(true, Ordering::Release);
        until(&db, "it panics", || !told.load(Ordering::Acquire)).await;
        a.enqueue(new(n)).await.unwrap();
        assert_eq!(calls.recv().await, Some(("a", n)));
    }
    let b = start("b").await;
    until(&db, "a hears of b", || a.shards("m").len() == 32).await;
    a.stop().await;
    b.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

/// A way to a database that can be closed for good.
async fn way_to(url: &str) -> (String, JoinHandle<()>) {
    let (head, rest) = url.split_once('@').unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let (host, listener) = (host.to_owned(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("{head}@{}/{path}", listener.local_addr().unwrap());
    let forwarding = tokio::spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&host).await.unwrap();
            open.spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    (url, forwarding)
}

/// Only PostgreSQL tells of wake-ups. What is asked of a database that is away is given up soon here, so that nothing else holds up the stop.
async fn a_stop_does_not_wait_until_it_is_time_to_listen_again(db: Db) {
    let (url, forwarding) = way_to(&db.url).await;
    let (mut config, mut options) = (config("a"), options());
    config.scan_interval = Duration::from_secs(600);
    (options.connect_timeout, options.retry_for) = (Duration::from_secs(1), Duration::from_secs(1));
    let a = Engine::builder(Store::open_with(&url, options).await.unwrap()).config(config).start().await.unwrap();
    forwarding.abort();
    until(&db, "it may not work", || a.troubles().iter().any(|trouble| trouble.contains("could not beat"))).await;
    tokio::time::timeout(Duration::from_secs(60), a.stop()).await.unwrap();
}

mod listening {
    mod postgres {
        crate::harness::stamp!([super super] fresh, Postgres, a_stop_does_not_wait_until_it_is_time_to_listen_again);
    }
}
