//! The redrive server and command line: makes failed calls good, for services in any language.
//!
//! The binary `redrive` is [`run`]. What else is public is for those who build a server of their own around it: [`http`]
//! makes an [`Engine`](redrive::Engine) deliver HTTP requests.

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::todo)
)]
// They panic when nobody listens any more (`| head`).
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

#[allow(clippy::indexing_slicing, reason = "a tool for measuring: a panic in it is a report")]
mod bench;
mod cli;
mod console;
mod demo;
mod guards;
pub mod http;
mod migrate;
mod saga;
mod serve;
mod server;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser;
use redrive::LogFormat;

/// Does what the command line says.
pub fn run() -> ExitCode {
    let cli = cli::Cli::parse();
    let (format, what) = cli.log();
    init_logging(format, what);
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
    let Some(code) = cli::exit_code(e) else { return ExitCode::SUCCESS };
    cli::aside(format!("redrive: {e}"));
    let mut said = e.to_string();
    for cause in e.chain().skip(1).map(ToString::to_string) {
        if !said.contains(&cause) {
            cli::aside(format!("  because: {cause}"));
            said = cause;
        }
    }
    ExitCode::from(code)
}

/// Logs go to standard error; `RUST_LOG` chooses what.
fn init_logging(format: LogFormat, what: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| what.into());
    let ours = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let ours = ours.log_internal_errors(false); // it would tell standard error that nobody reads standard error, and panic
    match format {
        LogFormat::Text => ours.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => ours.json().flatten_event(true).init(),
    }
}
