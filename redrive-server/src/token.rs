//! `redrive token`: who may use the API.

use std::time::Duration;

use anyhow::bail;
use clap::Subcommand;
use comfy_table::Table;
use redrive::store::{Role, Token};

use crate::cli::Database;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a token and show it, once: it cannot be shown again.
    Create {
        /// Whose it is, or what for.
        name: String,
        /// viewer looks, but not at params; operator enqueues and acts on tasks and letters; admin may do everything.
        #[arg(long, default_value = "operator")]
        role: Role,
        /// For how long it is good. Default: until it is revoked.
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
        #[command(flatten)]
        database: Database,
        /// Who you are, for the audit. Default: the name of your login.
        #[arg(long, env = "USER", default_value = "unknown")]
        by: String,
    },
    /// List tokens: whose they are, what they may do, when they were last used. Never the tokens themselves.
    Ls {
        #[command(flatten)]
        database: Database,
        /// One JSON object a line instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Make a token good for nothing, at once.
    Revoke {
        /// Its id, as `redrive token ls` shows it.
        id: String,
        #[command(flatten)]
        database: Database,
        /// Who you are, for the audit. Default: the name of your login.
        #[arg(long, env = "USER", default_value = "unknown")]
        by: String,
    },
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Create { name, role, expires_in, database, by } => {
                let store = database.open().await?;
                let now = store.now().await?;
                let made = store.create_token(&name, role, expires_in.map(|time| now + time), &by, now).await?;
                println!("{}", made.secret.reveal());
                eprintln!("This is the token of {name}. It is not shown again.");
            }
            Self::Ls { database, json } => {
                let tokens = database.open().await?.tokens().await?;
                match json {
                    true => tokens.iter().try_for_each(|t| serde_json::to_string(t).map(|line| println!("{line}")))?,
                    false => println!("{}", table(&tokens)),
                }
            }
            Self::Revoke { id, database, by } => {
                let store = database.open().await?;
                if !store.revoke_token(&id, &by, store.now().await?).await? {
                    bail!("there is no token {id} that is good; `redrive token ls` lists them");
                }
                println!("{id}: revoked");
            }
        }
        Ok(())
    }
}

fn table(tokens: &[Token]) -> Table {
    let mut table = Table::new();
    table.set_header(["id", "name", "role", "created", "by", "last used", "good until"]);
    for t in tokens {
        let time = |time: Option<redrive::Timestamp>| time.map(|t| t.to_string()).unwrap_or_default();
        let until = match t.revoked_at {
            Some(at) => format!("revoked at {at}"),
            None => time(t.expires_at),
        };
        let created = t.created_at.to_string();
        table.add_row([&t.id, &t.name, t.role.as_str(), &created, &t.created_by, &time(t.last_used_at), &until]);
    }
    table
}
