//! `redrive serve`: runs the engine until it is told to stop.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use redrive::guard::{Guards, GuardsBuilder};
use redrive::store::Role;
use redrive::{Engine, LogFormat, Store};
use tokio_util::sync::CancellationToken;

use crate::cli::Database;
use crate::guards;
use crate::http::HttpDelivery;
use crate::server::{self, Server, collect_metrics};

/// Tells people; if nobody listens any more (`redrive serve | head`), that is no reason to stop.
macro_rules! say {
    ($($text:tt)*) => {
        _ = writeln!(std::io::stdout(), $($text)*)
    };
}
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    database: Database,
    /// Where to answer HTTP. It is not encrypted: to be reached from other machines, put a proxy with TLS before it.
    /// Default: 127.0.0.1:7070, or what the settings say.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    listen: Option<SocketAddr>,
}

/// What is listened on is an address: a name may have several.
fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')).unwrap_or(text);
    text.parse().map_err(|_| match port.parse::<u16>() {
        Ok(port) => format!("write it as 127.0.0.1:{port}"),
        Err(_) => "it is an IP address and a port, as 127.0.0.1:7070 or [::1]:7070".into(),
    })
}

impl Serve {
    /// How it is to log: known before all else.
    pub(crate) fn log(&self) -> LogFormat {
        self.database.settings().map_or_else(|_| LogFormat::default(), |settings| settings.server.log)
    }
}

pub(crate) async fn run(serve: &Serve) -> anyhow::Result<()> {
    let mut signals = StopSignals::new()?;
    let metrics = collect_metrics()?;
    let settings = serve.database.settings()?;
    let listen = serve.listen.unwrap_or(settings.server.listen);
    let delivery = HttpDelivery::new(&settings)?;
    let store = Store::open_with(settings.database.as_str(), settings.store_options()?).await?;
    let guards = guards::of(&settings, &store, &delivery)?.taken_routes(server::paths());
    let builder = Engine::builder(store.clone());
    let builder = match serve.database.file() {
        Some(file) => builder.watch(file),
        None => builder.settings(settings),
    };
    let builder = crate::saga::install(delivery.clone().install(builder), &delivery);
    let engine = builder.start().await?;
    let guards = guarded(guards, &engine).await?;
    let bound = async {
        let server = Server::bind(listen, engine.clone(), delivery, Some(guards.clone()), metrics).await?;
        Ok((server, first_token(&store, listen).await?)) // not before it is certain that it will be shown
    };
    let (server, first) = match bound.await {
        Ok(bound) => bound,
        Err(e) => {
            tokio::join!(engine.stop(), guards.stop());
            return Err(with_a_hint(e));
        }
    };
    say!("redrive {} is running", env!("CARGO_PKG_VERSION"));
    say!("  database: {}", store.shown_url());
    say!("  console:  http://{}/", server.address()?);
    say!("  API:      http://{}/api/v1 (described at /docs)", server.address()?);
    if let Some(token) = first {
        say!("  token:    {token}  (of an admin; shown this once)");
    }
    say!("  stop with Ctrl-C");
    let stopped = CancellationToken::new();
    let answering = tokio::spawn(server.run(stopped.clone().cancelled_owned()));
    let first = signals.next().await;
    say!("{first}: stopping");
    let stopping = async {
        stopped.cancel();
        _ = answering.await; // first: what is asked for takes an engine that runs
        tokio::join!(engine.stop(), guards.stop());
        store.close().await;
    };
    tokio::select! {
        () = stopping => say!("stopped"),
        again = signals.next_wish() => say!("{again}: stopped at once"),
    }
    Ok(())
}

/// What most often is the reason that an address is taken.
fn with_a_hint(e: anyhow::Error) -> anyhow::Error {
    match e.downcast_ref::<std::io::Error>() {
        Some(why) if why.kind() == std::io::ErrorKind::AddrInUse => {
            anyhow::anyhow!("{e}: {why}; is a server running already? `--listen` takes another address")
        }
        _ => e,
    }
}

/// The guards, started; if they do not start, the engine is not left running.
async fn guarded(guards: GuardsBuilder, engine: &Engine) -> redrive::Result<Guards> {
    let started = guards.start().await;
    if started.is_err() {
        engine.stop().await;
    }
    started
}

/// On the first start there is nobody who could make a token: so one is made, and shown. Not where others could be first.
pub(crate) async fn first_token(store: &Store, listen: SocketAddr) -> anyhow::Result<Option<String>> {
    if !store.tokens().await?.is_empty() {
        return Ok(None);
    }
    anyhow::ensure!(
        listen.ip().is_loopback(),
        "there is no token yet, so it answers on loopback addresses only; make one in the same database with `redrive token \
         create NAME --role admin` (--database, if it was named here), then listen on {listen}"
    );
    let made = store.create_token("admin", Role::Admin, None, "first start", store.now().await?).await?;
    Ok(Some(made.secret.reveal().to_owned()))
}

/// Signals that come within this time are one wish.
const ONE_WISH: Duration = Duration::from_millis(300);

/// Ctrl-C (SIGINT) and, where there is one, SIGTERM. Made before anybody is told that it may be pressed: until then a
/// signal ends the process.
pub(crate) struct StopSignals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl StopSignals {
    pub(crate) fn new() -> std::io::Result<Self> {
        #[cfg(unix)]
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            #[cfg(unix)]
            interrupt: signal(SignalKind::interrupt())?,
            #[cfg(unix)]
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one that is a wish of its own. What stops a process may well signal it twice, itself and its
    /// group: what comes with the first one belongs to it.
    async fn next_wish(&mut self) -> &'static str {
        _ = tokio::time::timeout(ONE_WISH, async {
            loop {
                self.next().await;
            }
        })
        .await;
        self.next().await
    }

    /// Waits for the next one; its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        #[cfg(unix)]
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
        }
        #[cfg(not(unix))]
        {
            _ = tokio::signal::ctrl_c().await;
            "Ctrl-C"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_shown_as_it_is_to_be() {
        assert_eq!(address("[::1]:7171").unwrap().port(), 7171);
        for nearly in ["localhost:7171", "7171", ":7171"] {
            assert_eq!(address(nearly).unwrap_err(), "write it as 127.0.0.1:7171");
        }
        for wrong in ["", "example.org:7171", "127.0.0.1", "70000"] {
            assert!(address(wrong).unwrap_err().contains("127.0.0.1:7070"), "{wrong}");
        }
    }
}
