//! `redrive serve`: runs the engine until it is told to stop.

use redrive::Engine;

use crate::cli::Database;

pub(crate) async fn run(database: &Database) -> anyhow::Result<()> {
    let store = database.open().await?;
    let engine = Engine::builder(store.clone()).start().await?;
    println!("redrive {} is running", env!("CARGO_PKG_VERSION"));
    println!("  database: {}", store.shown_url());
    println!("  stop with Ctrl-C");
    let signal = stop_signal().await?;
    println!("{signal}: stopping");
    let stopping = async {
        engine.stop().await;
        store.close().await;
    };
    tokio::select! {
        () = stopping => println!("stopped"),
        again = stop_signal() => println!("{}: stopped at once", again?),
    }
    Ok(())
}

/// Waits for Ctrl-C or, where there is one, SIGTERM.
async fn stop_signal() -> std::io::Result<&'static str> {
    #[cfg(unix)]
    {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            pressed = tokio::signal::ctrl_c() => pressed.map(|()| "Ctrl-C"),
            _ = terminate.recv() => Ok("SIGTERM"),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await.map(|()| "Ctrl-C")
}
