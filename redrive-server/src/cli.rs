//! The command line.

use clap::{Args, Parser, Subcommand};
use redrive::{Settings, Store};

use crate::bench::Bench;
use crate::demo::Demo;
use crate::migrate::Migrate;
use crate::serve::Serve;
use crate::{method, node, serve, token};

/// redrive makes failed calls good: durable retries, dead letters, and the people behind them.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server, on an embedded SQLite database unless told otherwise.
    ///
    /// Stops cleanly on Ctrl-C (SIGINT) or SIGTERM; a second one stops at once.
    Serve(Serve),
    /// See what it does, in half a minute and with nothing to set up.
    ///
    /// A server, a flaky service and a mailbox, all in this process and on loopback; some tasks, and what becomes of them. Exits
    /// with 0 if every task ended as it was announced.
    Demo(Demo),
    /// Create the schema in a database, bring it up to date, or go over to monthly tables.
    ///
    /// Safe while nodes are running, and to be repeated. `serve` brings the schema up to date when it starts.
    Migrate(Migrate),
    /// Look at the nodes that share a database.
    #[command(subcommand)]
    Node(node::Command),
    /// See what waits of each method; hold one back and let it go.
    #[command(subcommand)]
    Method(method::Command),
    /// Make, list and revoke tokens for the API.
    #[command(subcommand)]
    Token(token::Command),
    /// Measure how fast it is on a database, beside the database's own limit.
    ///
    /// Use a database that nothing else works on. Rows that it writes are removed again.
    Bench(Bench),
}

/// Where it is if nobody says so.
const DEFAULT: &str = "sqlite://redrive.db";

/// Which database.
#[derive(Debug, Args)]
pub(crate) struct Database {
    /// The database: sqlite://file.db, postgres://user:password@host/database, mysql://… or mariadb://….
    ///
    /// Several hosts (host1,host2) are tried in their order when one fails. A password is better given through the
    /// environment, where other users of the machine cannot see it.
    #[arg(
        long,
        value_name = "URL",
        env = "REDRIVE_DATABASE",
        hide_env_values = true,
        default_value = DEFAULT
    )]
    pub(crate) database: String,
}

impl Database {
    /// The one that was named, or else that of the settings.
    pub(crate) fn or<'a>(&'a self, settings: &'a Settings) -> &'a str {
        if self.database == DEFAULT { settings.database.as_str() } else { &self.database }
    }

    pub(crate) async fn open(&self) -> redrive::Result<Store> {
        Store::open(&self.database).await
    }
}

impl Cli {
    /// What is logged if nobody says so: the demo tells its own story.
    pub(crate) fn log_filter(&self) -> &'static str {
        match self.command {
            Command::Demo(_) => "off",
            _ => "warn,redrive=info",
        }
    }

    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Serve(serve) => serve::run(&serve).await,
            Command::Demo(demo) => demo.run().await,
            Command::Node(command) => command.run().await,
            Command::Method(command) => command.run().await,
            Command::Token(command) => command.run().await,
            Command::Bench(bench) => bench.run().await,
            Command::Migrate(migrate) => migrate.run().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
