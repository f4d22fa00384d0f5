//! The command line.
//!
//! What people do goes through the API, whether a server answers it or this process does ([`Api`]): there is one implementation,
//! with the same checks and the same audit.
//!
//! | file | what |
//! | --- | --- |
//! | `api` | a server, or a database without one |
//! | `failure` | what is said when it did not work, and the exit codes |
//! | `out` | tables for people, JSON for programs, times, counts |
//! | `filter` | which tasks or letters, and lists of them, page by page |
//! | `bulk` | what is done to many, with a dry run, a question and a bar |
//! | `task`, `dead`, `method`, `gate`, `saga`, `guard`, `node`, `settings`, `token`, `audit`, `overview` | the commands |
//! | `notify` | whether people can be reached |

mod api;
mod audit;
mod bulk;
mod dead;
mod enqueue;
mod failure;
mod filter;
mod gate;
mod guard;
mod method;
mod node;
mod notify;
mod out;
mod overview;
mod saga;
mod settings;
mod task;
mod token;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use redrive::{LogFormat, Settings, Store};

use crate::bench::Bench;
use crate::demo::Demo;
use crate::migrate::Migrate;
use crate::serve::{self, Serve};
use api::{Api, Where};
use out::Out;

pub(crate) use failure::exit_code;
pub(crate) use out::{aside, line};

/// Told by `--help`; docs/operate/cli.md has the same.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it failed, or was done in part
  2  wrong usage, or a value that is not valid
  3  there is no such thing
  4  not allowed: no token, a wrong one, or one of too low a role
  5  the server or the database could not be reached
  130  stopped with Ctrl-C; what was done by then is done";

/// redrive makes failed calls good: durable retries, dead letters, and the people behind them.
///
/// Commands that look at tasks, or act on them, work through a server (--server, or REDRIVE_SERVER_URL, with a token in
/// REDRIVE_TOKEN) or directly on a database (--database, REDRIVE_DATABASE, or that of redrive.toml).
#[derive(Debug, Parser)]
#[command(name = "redrive", version = VERSION.as_str(), max_term_width = 100, after_help = EXIT_CODES)]
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
    /// See how much there is, at one look.
    #[command(visible_alias = "status")]
    Overview(Alone<overview::Overview>),
    /// Look at tasks that wait or run; retry, cancel or fail them; enqueue new ones.
    Task(Group<task::Command>),
    /// Look at dead letters; bring them back, or close them.
    Dead(Group<dead::Command>),
    /// See what waits of each method; hold one back and let it go.
    Method(Group<method::Command>),
    /// See which targets are held back because they are down; hold one, or let it go.
    Gate(Group<gate::Command>),
    /// Look at sagas, drawn as trees; start, tell, retry, undo or end them.
    Saga(Group<saga::Command>),
    /// Look at guarded business tables and their failed rows; say that one has been handled.
    Guard(Group<guard::Command>),
    /// Look at the nodes that share a database.
    Node(Group<node::Command>),
    /// See what settings hold; change some while nodes run.
    Settings(Group<settings::Command>),
    /// Make, list and revoke tokens for the API.
    Token(Group<token::Command>),
    /// See who did what, and what was refused.
    Audit(Group<audit::Command>),
    /// Try whether people can be reached.
    #[command(subcommand)]
    Notify(notify::Command),
    /// Create the schema in a database, bring it up to date, or go over to monthly tables.
    ///
    /// Safe while nodes are running, and to be repeated. `serve` brings the schema up to date when it starts.
    Migrate(Migrate),
    /// Measure how fast it is on a database, beside the database's own limit.
    ///
    /// Use a database that nothing else works on. Rows that it writes are removed again.
    Bench(Bench),
    /// Print a script that completes this command line in a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// What a command does, once it is known through whom.
trait Run {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()>;
}

/// Commands that go through the API.
#[derive(Debug, Args)]
struct Group<C: Subcommand> {
    #[command(flatten)]
    place: Where,
    #[command(subcommand)]
    command: C,
}

/// The same without commands below it.
#[derive(Debug, Args)]
struct Alone<C: Args> {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    command: C,
}

impl<C: Subcommand + Run> Group<C> {
    async fn run(self) -> anyhow::Result<()> {
        let api = Box::pin(self.place.open()).await?;
        self.command.run(&api, self.place.out()).await
    }
}

impl<C: Args + Run> Alone<C> {
    async fn run(self) -> anyhow::Result<()> {
        let api = Box::pin(self.place.open()).await?;
        self.command.run(&api, self.place.out()).await
    }
}

/// Where it is if nobody says so.
const DEFAULT: &str = "sqlite://redrive.db";
const DEFAULT_FILE: &str = "redrive.db";

const NEW_HERE: &str = "no database was named, and there was no redrive.db in this directory: this is a new one (--database URL names \
                        another)";

/// Which database, and which settings beside it. What is said on the command line wins over the environment, that over the
/// file, and that over what is built in: for every command the same.
#[derive(Debug, Args)]
pub(crate) struct Database {
    /// The database: sqlite://file.db, postgres://user:password@host/database, mysql://… or mariadb://….
    /// Default: that of the settings, else sqlite://redrive.db. [env: REDRIVE_DATABASE]
    ///
    /// Several hosts (host1,host2) are tried in their order when one fails. A password is better given through the
    /// environment, where other users of the machine cannot see it.
    #[arg(long, value_name = "URL", global = true)]
    database: Option<String>,
    #[command(flatten)]
    config: Config,
}

impl Database {
    /// What holds: file, environment, and the database that was named.
    pub(crate) fn settings(&self) -> redrive::Result<Settings> {
        let mut settings = self.config.load()?;
        if let Some(database) = &self.database {
            settings.database = database.as_str().into();
        }
        Ok(settings)
    }

    /// The file, if there is one.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        self.config.config.clone().or_else(|| Some(PathBuf::from("redrive.toml")).filter(|file| file.exists()))
    }

    /// Whether nobody has named one, and that of this directory is still to be made.
    fn is_new_here(&self, settings: &Settings) -> bool {
        let is_named = self.database.is_some() || settings.database.as_str() != DEFAULT;
        !is_named && !Path::new(DEFAULT_FILE).exists()
    }

    pub(crate) async fn open(&self) -> redrive::Result<Store> {
        let settings = self.settings()?;
        if self.is_new_here(&settings) {
            aside(NEW_HERE);
        }
        Store::open_with(settings.database.as_str(), settings.store_options()?).await
    }
}

/// Which file of settings.
#[derive(Debug, Args)]
struct Config {
    /// The file of settings. Default: redrive.toml in the current directory, if there is one.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
}

impl Config {
    fn load(&self) -> redrive::Result<Settings> {
        Settings::load(self.config.as_deref())
    }
}

impl Cli {
    /// How it is to log, and what unless `RUST_LOG` says so. What is asked for once has no news but its answer.
    pub(crate) fn log(&self) -> (LogFormat, &'static str) {
        match &self.command {
            Command::Serve(serve) => (serve.log(), "warn,redrive=info"),
            Command::Demo(_) => (LogFormat::default(), "off"), // it tells its own story
            Command::Migrate(_) | Command::Bench(_) => (LogFormat::default(), "warn,redrive=info"),
            _ => (LogFormat::default(), "warn"),
        }
    }

    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Serve(serve) => serve::run(&serve).await,
            Command::Demo(demo) => demo.run().await,
            Command::Overview(overview) => overview.run().await,
            Command::Task(group) => group.run().await,
            Command::Dead(group) => group.run().await,
            Command::Method(group) => group.run().await,
            Command::Gate(group) => group.run().await,
            Command::Saga(group) => group.run().await,
            Command::Guard(group) => group.run().await,
            Command::Node(group) => group.run().await,
            Command::Settings(group) => group.run().await,
            Command::Token(group) => group.run().await,
            Command::Audit(group) => group.run().await,
            Command::Notify(command) => command.run().await,
            Command::Migrate(migrate) => migrate.run().await,
            Command::Bench(bench) => bench.run().await,
            Command::Completions { shell } => completions(shell),
        }
    }
}

/// The version, and what is known of the build: the commit if it was told (`REDRIVE_COMMIT`), with or without optimisation, for which system.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("REDRIVE_COMMIT").filter(|commit| !commit.is_empty());
    let made = commit.into_iter().chain([
        if cfg!(debug_assertions) { "debug" } else { "release" },
        std::env::consts::OS,
        std::env::consts::ARCH,
    ]);
    format!("{} ({})", env!("CARGO_PKG_VERSION"), made.collect::<Vec<_>>().join(", "))
});

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new(); // written at once: the generator would panic if nobody listens
    clap_complete::generate(shell, &mut Cli::command(), "redrive", &mut script);
    Ok(std::io::Write::write_all(&mut std::io::stdout(), &script)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
