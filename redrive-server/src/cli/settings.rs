//! `redrive settings`: what holds, and what people change while nodes run.

use clap::Subcommand;
use redrive::Timestamp;
use serde_json::{Value, json};

use super::Run;
use super::api::{Api, Query};
use super::failure::Failure;
use super::out::{Column, Out, short, text, when};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show settings: as they hold on the server that answers or, without one, by the file and the environment here. Of
    /// defaults and methods only what was said is there, not what is built in. Secrets are masked.
    Get {
        /// One of them, or what several begin with: defaults.max_attempts, retention.
        path: Option<String>,
    },
    /// Set a field on all nodes, over what their files say. Only what holds at once can be set; the rest is for the file.
    Set {
        /// As in the file: defaults.max_attempts, methods."billing.charge".timeout.
        path: String,
        /// JSON if it is, else a text: 5, 10s, '{"fixed": "3s"}'.
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Take back what was set: what the files say holds again.
    Unset {
        /// As it was set.
        path: String,
    },
}

const COLUMNS: &[Column] = &[
    ("setting", |field, _| text(field, "path")),
    ("value", |field, _| short(field, "value")),
    ("set while running", |field, now| set_by(field, now)),
];

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        match self {
            Self::Get { path } => get(path.as_deref(), api, out).await,
            Self::Set { path, value } => {
                let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
                let answer = api.put(&["settings", &path], &json!({ "value": value })).await?;
                let text = format!("{path} is {value}");
                changed(&[("path", path.into()), ("value", value)], &text, &answer, out)
            }
            Self::Unset { path } => {
                let answer = api.delete(&["settings", &path]).await?;
                let text = format!("{path} is as the files say");
                changed(&[("path", path.into())], &text, &answer, out)
            }
        }
    }
}

/// Says what is changed, and when nodes follow.
fn changed(what: &[(&str, Value)], text: &str, answer: &Value, out: Out) -> anyhow::Result<()> {
    let waiting = answer.get("waiting").map(|waiting| ("waiting", waiting.clone()));
    let when = match waiting {
        Some(_) => "each node follows at its next start",
        None => "all nodes follow within a few seconds",
    };
    let said: Query = what.iter().cloned().chain(waiting).map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(out.say(&json!(said), format!("{text}; {when}"))?)
}

async fn get(path: Option<&str>, api: &Api, out: Out) -> anyhow::Result<()> {
    let fields = fields(&api.get(&["settings"], &Query::new()).await?);
    let Some(path) = path else { return Ok(out.list(&fields, COLUMNS, "")?) };
    if let Some(field) = fields.iter().find(|field| text(field, "path") == path) {
        return Ok(out.say(field, text(field, "value"))?);
    }
    let section = format!("{path}.");
    let below: Vec<Value> = fields.into_iter().filter(|field| text(field, "path").starts_with(&section)).collect();
    if below.is_empty() {
        let said = format!("{path} is not set, or no setting; `redrive settings get` lists those that there are");
        return Err(Failure::not_found(said).into());
    }
    Ok(out.list(&below, COLUMNS, "")?)
}

/// Each field as an object. What people have set wins: without a server, only the database knows of it.
fn fields(answer: &Value) -> Vec<Value> {
    let mut all = answer.get("settings").and_then(Value::as_object).cloned().unwrap_or_default();
    let set = answer.get("set").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for field in set {
        all.insert(text(field, "path"), field.get("value").cloned().unwrap_or_default());
    }
    let shown = |(path, value): (String, Value)| {
        let set = set.iter().find(|field| text(field, "path") == path);
        let set = set.map(|set| json!({ "since": set.get("since"), "by": set.get("by") }));
        json!({ "path": path, "value": value, "set": set })
    };
    all.into_iter().map(shown).collect()
}

fn set_by(field: &Value, now: Timestamp) -> String {
    let by = Some(text(field, "set/by")).filter(|by| !by.is_empty()).map(|by| format!(", by {by}"));
    when(field, "set/since", now) + &by.unwrap_or_default()
}
