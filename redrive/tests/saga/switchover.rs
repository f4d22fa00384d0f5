//! Planned switchovers of a MySQL or MariaDB primary: the old one becomes read-only, and keeps its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use redrive::saga::SagaState;
use redrive::store::Registration;
use redrive::{Engine, Store};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::harness::{Kind, moment, options};
use crate::script::{World, settled, trip};
use crate::server::Server;

/// Two servers with a database each. What is in the first is not in the second, which shows who has answered.
struct Pair {
    servers: [Server; 2],
}

impl Pair {
    async fn start() -> Self {
        _ = crate::harness::server_url(Kind::MySql); // the programs are here, or this says what to do
        let starting = || tokio::task::spawn_blocking(|| Server::start_new(Kind::MySql));
        let (old, new) = tokio::join!(starting(), starting());
        let pair = Self { servers: [old.unwrap(), new.unwrap()] };
        for n in [0, 1] {
            // Whoever may do everything may write to a server that is read-only.
            pair.sql(n, "CREATE DATABASE t").await;
            for host in ["localhost", "127.0.0.1", "%"] {
                pair.sql(n, &format!("CREATE USER app@'{host}'")).await;
                pair.sql(n, &format!("GRANT ALL ON t.* TO app@'{host}'")).await;
            }
        }
        pair
    }

    async fn sql(&self, n: usize, sql: &str) {
        let mut c = sqlx::MySqlConnection::connect(&self.servers[n].url()).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut c).await.unwrap();
    }

    fn port(&self, n: usize) -> u16 {
        let url = self.servers[n].url();
        let port = url.split(':').next_back().and_then(|rest| rest.split('/').next()).unwrap();
        port.parse().unwrap()
    }

    async fn store(&self, n: usize) -> Store {
        open(&[self.port(n)]).await
    }

    /// The first server stays, with its connections, and takes no writes any more.
    async fn demote(&self) {
        self.sql(0, "SET GLOBAL read_only = 1").await;
    }
}

async fn open(ports: &[u16]) -> Store {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    Store::open_with(&format!("mysql://app@{}/t", hosts.join(",")), options()).await.unwrap()
}

/// A saga that nobody runs.
async fn start_on(store: &Store, id: &str) {
    let engine = Engine::builder(store.clone()).start().await.unwrap();
    engine.sagas().start_with(trip(), id, json!({ "who": "Ada" })).await.unwrap();
    engine.stop().await;
}

/// Fewer than there are connections: writes need some as well.
const READERS: usize = 4;

/// Reads without a pause, so that the connections are never idle: those that are return to their pool one by one.
struct Readers {
    readers: JoinSet<usize>,
    is_over: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
}

impl Readers {
    async fn start(store: &Store, id: &'static str) -> Self {
        // More connections than there are readers: a write finds an idle one of before the switchover, and opens none.
        let opened = futures_util::future::join_all((0..=READERS).map(|_| store.saga(id))).await;
        assert!(opened.iter().all(Result::is_ok));
        let (is_over, ends) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let read = Arc::new(AtomicUsize::new(0));
        let mut readers = JoinSet::new();
        for _ in 0..READERS {
            let (store, is_over, ends, read) = (store.clone(), is_over.clone(), ends.clone(), read.clone());
            readers.spawn(async move {
                let mut late = 0;
                while !ends.load(Ordering::SeqCst) {
                    let is_late = is_over.load(Ordering::SeqCst);
                    let is_found = store.saga(id).await.is_ok_and(|saga| saga.is_some());
                    read.fetch_add(1, Ordering::SeqCst);
                    late += usize::from(is_late && is_found);
                }
                late
            });
        }
        while read.load(Ordering::SeqCst) < 500 {
            moment().await;
        }
        Self { readers, is_over, ends }
    }

    /// From now on nothing may be found.
    fn switchover_is_over(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// How many reads have found it nevertheless.
    async fn late(self) -> usize {
        for _ in 0..100 {
            moment().await;
        }
        self.ends.store(true, Ordering::SeqCst);
        self.readers.join_all().await.into_iter().sum()
    }
}

async fn write(store: &Store) {
    store.register(&Registration::default(), store.now().await.unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_no_connection_to_the_old_primary_answers() {
    let pair = Pair::start().await;
    start_on(&pair.store(0).await, "old").await;
    pair.store(1).await;
    let store = open(&[pair.port(0), pair.port(1)]).await;
    let readers = Readers::start(&store, "old").await;
    pair.demote().await;
    write(&store).await;
    readers.switchover_is_over();
    assert_eq!(readers.late().await, 0, "reads that the old primary has answered");
}

/// A virtual address: new connections go to whichever server it names, and old ones stay where they are.
async fn proxy(upstream: Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let port = upstream.load(Ordering::SeqCst);
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_behind_a_virtual_address_the_old_primary_answers_no_more_after_one_refusal() {
    let pair = Pair::start().await;
    start_on(&pair.store(0).await, "old").await;
    pair.store(1).await;
    let upstream = Arc::new(AtomicU16::new(pair.port(0)));
    let store = open(&[proxy(upstream.clone()).await]).await;
    let readers = Readers::start(&store, "old").await;
    pair.demote().await;
    upstream.store(pair.port(1), Ordering::SeqCst);
    write(&store).await; // on the connection that writes have used before
    readers.switchover_is_over();
    assert_eq!(readers.late().await, 0, "reads that the old primary has answered");
}

/// The sagas that are started on the new primary while a node still has connections to the old one.
const SAGAS: usize = 40;

async fn no_step_is_dropped(by_list: bool) {
    let pair = Pair::start().await;
    let (old, new) = (pair.store(0).await, pair.store(1).await);
    let upstream = Arc::new(AtomicU16::new(pair.port(0)));
    let ports = if by_list { vec![pair.port(0), pair.port(1)] } else { vec![proxy(upstream.clone()).await] };
    let store = open(&ports).await;
    let world = World::default();
    let engine = world.engine(&store).await;
    start_on(&old, "before").await;
    assert_eq!(settled(&engine, "before").await, SagaState::Succeeded);
    let readers = Readers::start(&store, "nobody").await;
    pair.demote().await;
    upstream.store(pair.port(1), Ordering::SeqCst);
    let starter = Engine::builder(new.clone()).start().await.unwrap();
    for n in 0..SAGAS {
        starter.sagas().start_with(trip(), &format!("trip-{n}"), json!({ "who": "Ada" })).await.unwrap();
    }
    let mut dropped = Vec::new();
    for n in 0..SAGAS {
        let id = format!("trip-{n}");
        // All are on their way by now: whoever has to wait for long waits for ever.
        let patience = Duration::from_secs(if dropped.is_empty() { 30 } else { 1 });
        if tokio::time::timeout(patience, starter.sagas().ended(&id)).await.is_err() {
            dropped.push(id);
        }
    }
    readers.late().await;
    assert!(dropped.is_empty(), "{} of {SAGAS} wait for ever: {dropped:?}", dropped.len());
    engine.stop().await;
    starter.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_no_step_is_dropped_with_several_hosts() {
    no_step_is_dropped(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_no_step_is_dropped_behind_a_virtual_address() {
    no_step_is_dropped(false).await;
}
