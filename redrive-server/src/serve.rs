//! `redrive serve`: runs the engine until it is told to stop.

use redrive::Engine;

use crate::cli::Database;

pub(crate) async fn run(database: &Database) -> anyhow::Result<()> {
    let mut signals = StopSignals::new()?;
    let store = database.open().await?;
    let engine = Engine::builder(store.clone()).start().await?;
    println!("redrive {} is running", env!("CARGO_PKG_VERSION"));
    println!("  database: {}", store.shown_url());
    println!("  stop with Ctrl-C");
    println!("{}: stopping", signals.next().await);
    let stopping = async {
        engine.stop().await;
        store.close().await;
    };
    tokio::select! {
        () = stopping => println!("stopped"),
        again = signals.next() => println!("{again}: stopped at once"),
    }
    Ok(())
}

/// Ctrl-C (SIGINT) and, where there is one, SIGTERM. Made before anybody is told that it may be pressed: until then a
/// signal ends the process.
struct StopSignals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl StopSignals {
    fn new() -> std::io::Result<Self> {
        #[cfg(unix)]
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            #[cfg(unix)]
            interrupt: signal(SignalKind::interrupt())?,
            #[cfg(unix)]
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one; its name.
    async fn next(&mut self) -> &'static str {
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
