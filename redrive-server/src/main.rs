//! `redrive`: the server and the command line, one binary.

mod bench;
mod cli;
mod method;
mod migrate;
mod node;
mod serve;
mod server;

use std::process::ExitCode;

use clap::Parser;

/// A sixth of the engine's time would go into the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    init_logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return failed(&e.into()),
    };
    match runtime.block_on(cli.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => failed(&e),
    }
}

/// Says what went wrong, with its causes where they add something.
fn failed(e: &anyhow::Error) -> ExitCode {
    eprintln!("redrive: {e}");
    let mut said = e.to_string();
    for cause in e.chain().skip(1).map(ToString::to_string) {
        if !said.contains(&cause) {
            eprintln!("  because: {cause}");
            said = cause;
        }
    }
    ExitCode::FAILURE
}

/// Logs go to standard error; `RUST_LOG` chooses what.
fn init_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn,redrive=info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
