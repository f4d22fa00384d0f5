//! Servers of the Nacos protocol, a way to them that can be cut, and nodes that find each other there.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use redrive::registry::{Nacos, NacosConfig};
use redrive::{Builder, Context, Engine, EngineConfig, Settings, Verdict};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::harness::Db;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: `scripts/db start --stores nacos`, then `eval \"$(scripts/db env)\"`")
    })
}

/// The server that all tests share: each has a database of its own, and so a service of its own.
pub fn shared() -> String {
    variable("REDRIVE_TEST_NACOS")
}

/// gRPC is where the clients of Nacos look for it.
fn grpc(server: &str) -> SocketAddr {
    let server: SocketAddr = server.parse().unwrap();
    SocketAddr::new(server.ip(), server.port() + 1_000)
}

/// A server for one test alone. It dies with its value.
pub struct Server {
    pub address: String,
    dir: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
    child: Option<Child>,
}

impl Server {
    /// Not started yet.
    pub async fn new(variables: &[(&'static str, &'static str)]) -> Self {
        loop {
            let any = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = any.local_addr().unwrap().port();
            let is_free = |port: u32| async move {
                u16::try_from(port).is_ok() && TcpListener::bind(("127.0.0.1", port as u16)).await.is_ok()
            };
            if is_free(u32::from(port) + 1_000).await && is_free(u32::from(port) + 2_000).await {
                let (address, dir) = (format!("127.0.0.1:{port}"), tempfile::tempdir().unwrap());
                return Self { address, dir, variables: variables.to_vec(), child: None };
            }
        }
    }

    pub async fn start(&mut self) {
        let address: SocketAddr = self.address.parse().unwrap();
        let port = |more: u16| (address.port() + more).to_string();
        let child = Command::new(variable("REDRIVE_TEST_RNACOS"))
            .env("RNACOS_SDK_HOST", "127.0.0.1")
            .env("RNACOS_CONSOLE_HOST", "127.0.0.1")
            .env("RNACOS_HTTP_PORT", port(0))
            .env("RNACOS_GRPC_PORT", port(1_000))
            .env("RNACOS_HTTP_CONSOLE_PORT", port(2_000))
            .env("RNACOS_CONFIG_DB_DIR", self.dir.path().join("data"))
            .envs(self.variables.iter().copied())
            .current_dir(self.dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        self.child = Some(child.unwrap());
        for port in [address, grpc(&self.address)] {
            let answers = async { while TcpStream::connect(port).await.is_err() {} };
            tokio::time::timeout(Duration::from_secs(60), answers).await.expect("the server does not start");
        }
    }

    /// `kill -9`.
    pub async fn kill(&mut self) {
        self.child.take().unwrap().kill().await.unwrap();
    }
}

/// A way to a server that can be cut, and mended.
pub struct Way {
    /// For the settings: the port below that of gRPC. Nothing listens there.
    pub address: String,
    to: SocketAddr,
    open: Option<AbortHandle>,
}

impl Way {
    pub async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut way = Self { address: format!("127.0.0.1:{}", port - 1_000), to: grpc(server), open: None };
        way.serve(listener);
        way
    }

    fn serve(&mut self, listener: TcpListener) {
        let to = self.to;
        let carry = async move {
            let mut connections = JoinSet::new(); // dropped, and cut, with this task
            while let Ok((mut from, _)) = listener.accept().await {
                connections.spawn(async move {
                    if let Ok(mut to) = TcpStream::connect(to).await {
                        _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                    }
                });
            }
        };
        self.open = Some(tokio::spawn(carry).abort_handle());
    }

    pub fn cut(&mut self) {
        self.open.take().unwrap().abort();
    }

    pub async fn mend(&mut self) {
        self.serve(TcpListener::bind(grpc(&self.address)).await.unwrap());
    }
}

pub fn nacos_config(server: &str) -> NacosConfig {
    let mut config = NacosConfig::default();
    config.servers = vec![server.into()];
    config
}

pub fn engine_config(name: &str) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.name = name.into();
    config.scan_interval = Duration::from_millis(50);
    config.sweep_interval = Duration::from_millis(200);
    config.beat_interval = Duration::from_millis(200);
    config.lease = Duration::from_secs(5);
    config.margin = Duration::from_secs(1);
    config
}

/// So seldom does it beat, and renew its view by the beat, that whatever it knows sooner it was told.
pub fn slow(name: &str) -> EngineConfig {
    let mut slow = engine_config(name);
    slow.beat_interval = Duration::from_secs(300);
    slow.lease = Duration::from_secs(900);
    slow.margin = Duration::from_secs(200);
    slow
}

pub type Done = mpsc::UnboundedSender<(&'static str, u64)>;

/// A node that tells which tasks it has done.
pub struct Prepared(Builder);

pub async fn node(db: &Db, name: &'static str, config: EngineConfig, methods: &[&str], done: &Done) -> Prepared {
    let mut builder = Engine::builder(db.another().await).config(config);
    for method in methods {
        let done = done.clone();
        builder = builder.register(*method, move |_: Context, n: u64| {
            _ = done.send((name, n));
            std::future::ready(Ok::<(), Verdict>(()))
        });
    }
    Prepared(builder)
}

impl Prepared {
    pub async fn start(self, server: &str) -> Engine {
        self.start_keeping(server, Duration::from_secs(60)).await
    }

    pub async fn start_keeping(self, server: &str, keep_view_for: Duration) -> Engine {
        let mut settings = Settings::default();
        settings.registry.keep_view_for = keep_view_for;
        let nacos = Nacos::new(nacos_config(server)).unwrap();
        self.0.settings(settings).registry(nacos).start().await.unwrap()
    }
}

/// Waits until it is so; the database, which is asked in between, is slow enough for that.
pub async fn until(db: &Db, what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            db.store.nodes().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(120), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
