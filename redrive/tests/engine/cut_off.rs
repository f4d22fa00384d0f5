//! A node that is cut off from its database, through a proxy of our own. SQLite has no network to be cut.

use std::time::Duration;

use redrive::{Context, Engine, EngineConfig, Store, Verdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::harness::{Db, Kind, new};

mod postgres {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_node_that_is_cut_off_stops_before_others_take_its_work_and_comes_back() {
        super::cut_off(super::Db::fresh(super::Kind::Postgres).await).await;
    }
}

mod mysql {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_node_that_is_cut_off_stops_before_others_take_its_work_and_comes_back() {
        super::cut_off(super::Db::fresh(super::Kind::MySql).await).await;
    }
}

/// Passes bytes on while `open`; while it is not, nothing gets through and nothing is refused.
struct Proxy {
    url: String,
    open: watch::Sender<bool>,
}

impl Proxy {
    async fn before(url: &str) -> Self {
        let (head, rest) = url.split_once('@').unwrap();
        let (host, path) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{head}@{}/{path}", listener.local_addr().unwrap());
        let (open, is_open) = watch::channel(true);
        let host = host.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&host).await.unwrap();
                let ((cr, cw), (sr, sw)) = (client.into_split(), server.into_split());
                tokio::spawn(pass(cr, sw, is_open.clone()));
                tokio::spawn(pass(sr, cw, is_open.clone()));
            }
        });
        Self { url, open }
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut open: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        if n == 0 || open.wait_for(|open| *open).await.is_err() || to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

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

async fn cut_off(db: Db) {
    let proxy = Proxy::before(&db.url).await;
    let (seen, mut events) = mpsc::unbounded_channel();
    let cut = node(Store::open(&proxy.url).await.unwrap(), "cut", &seen).await;
    let number = db.store.nodes().await.unwrap()[0].number;
    cut.enqueue(new(1)).await.unwrap();
    assert_eq!(events.recv().await, Some(Seen::Started("cut")));
    let other = node(db.another().await, "other", &seen).await;
    proxy.open.send(false).unwrap();
    // First it stops by its own clock; only then can the other have fenced it and taken the task.
    assert_eq!(events.recv().await, Some(Seen::Stopped("cut")));
    assert_eq!(events.recv().await, Some(Seen::Started("other")));
    let nodes = db.store.nodes().await.unwrap();
    assert!(nodes.iter().any(|n| n.number == number && n.dead), "{nodes:?}");
    proxy.open.send(true).unwrap();
    let back = async {
        loop {
            let nodes = db.store.nodes().await.unwrap();
            if nodes.iter().any(|n| n.registration.name == "cut" && n.number != number && !n.dead) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back).await.expect("it comes back by itself");
    cut.stop().await;
    other.stop().await;
}
