//! `redrive token`: who may use the API.

use clap::Subcommand;
use redrive::Timestamp;
use redrive::store::Role;
use serde_json::{Value, json};

use super::Run;
use super::api::{Api, Query};
use super::out::{Column, Out, aside, short, text, when};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a token and show it, once: it cannot be shown again.
    Create {
        /// Whose it is, or what for.
        name: String,
        /// viewer looks, but not at params; operator enqueues and acts on tasks and letters; admin may do everything.
        #[arg(long, default_value = "operator")]
        role: Role,
        /// For how long it is good: 90d. Default: until it is revoked.
        #[arg(long, alias = "expires-in", value_name = "TIME")]
        expires: Option<String>,
    },
    /// List tokens: whose they are, what they may do, when they were last used. Never the tokens themselves.
    Ls,
    /// Make a token good for nothing. Servers that have just seen it may take it for one more second.
    Revoke {
        /// Its id, as `redrive token ls` shows it.
        id: String,
    },
}

const COLUMNS: &[Column] = &[
    ("id", |token, _| text(token, "id")),
    ("name", |token, _| short(token, "name")),
    ("role", |token, _| text(token, "role")),
    ("created", |token, now| when(token, "created_at", now)),
    ("by", |token, _| short(token, "created_by")),
    ("last used", |token, now| when(token, "last_used_at", now)),
    ("good until", |token, now| until(token, now)),
];

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        match self {
            Self::Create { name, role, expires } => {
                let new = json!({ "name": name, "role": role, "expires_in": expires });
                let made = api.post(&["tokens"], &new).await?;
                out.say(&made, text(&made, "secret"))?;
                aside(format!("This is the token of {name}. It is not shown again."));
                Ok(())
            }
            Self::Ls => {
                let answer = api.get(&["tokens"], &Query::new()).await?;
                let tokens = answer.get("tokens").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                Ok(out.list(tokens, COLUMNS, "there is no token; make one with `redrive token create NAME`")?)
            }
            Self::Revoke { id } => {
                api.delete(&["tokens", &id]).await?;
                Ok(out.say(&json!({ "id": id, "state": "revoked" }), format!("{id}: revoked"))?)
            }
        }
    }
}

fn until(token: &Value, now: Timestamp) -> String {
    match when(token, "revoked_at", now) {
        at if at.is_empty() => when(token, "expires_at", now),
        at => format!("revoked {at}, by {}", short(token, "revoked_by")),
    }
}
