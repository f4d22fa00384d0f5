//! `redrive method`: what waits of each method, and holding one back.

use clap::Subcommand;
use redrive::Timestamp;
use serde_json::{Value, json};

use super::Run;
use super::api::{Api, Query};
use super::out::{Column, Out, count, short, span, text, time, when};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List methods that have tasks or dead letters, are paused, or are handled by a node.
    Ls,
    /// Hold the tasks of a method back, on all nodes, until it is resumed. What runs goes on.
    Pause {
        /// The method's name.
        method: String,
    },
    /// Let the tasks of a paused method run again.
    Resume {
        /// The method's name.
        method: String,
    },
}

const COLUMNS: &[Column] = &[
    ("method", |method, _| short(method, "method")),
    ("tasks", |method, _| count(method, "tasks")),
    ("late by", |method, now| late(method, now)),
    ("dead", |method, _| count(method, "dead")),
    ("nodes", |method, _| nodes(method)),
    ("paused", |method, now| paused(method, now)),
];

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        match self {
            Self::Ls => {
                let answer = api.get(&["methods"], &Query::new()).await?;
                let methods = answer.get("methods").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                Ok(out.list(methods, COLUMNS, "nothing waits, and no method is paused or handled")?)
            }
            Self::Pause { method } => {
                let said = ("paused; nodes follow within their beat", "was paused already");
                change(&method, "pause", said, api, out).await
            }
            Self::Resume { method } => {
                let said = ("resumed; nodes follow within their beat", "was not paused");
                change(&method, "resume", said, api, out).await
            }
        }
    }
}

async fn change(method: &str, verb: &str, said: (&str, &str), api: &Api, out: Out) -> anyhow::Result<()> {
    let answer = api.post(&["methods", method, verb], &json!({})).await?;
    let changed = answer.get("changed").and_then(Value::as_bool).unwrap_or_default();
    let said = if changed { said.0 } else { said.1 };
    Ok(out.say(&json!({ "method": method, "changed": changed }), format!("{method}: {said}"))?)
}

/// Since when the first of those that wait is due.
fn late(method: &Value, now: Timestamp) -> String {
    time(method, "oldest_due").filter(|due| *due <= now).map(|due| span(now.since(due))).unwrap_or_default()
}

fn nodes(method: &Value) -> String {
    match text(method, "nodes").as_str() {
        "0" => "none: unhandled".into(),
        n => n.to_owned(),
    }
}

fn paused(method: &Value, now: Timestamp) -> String {
    let by = Some(text(method, "paused/by")).filter(|by| !by.is_empty()).map(|by| format!(", by {by}"));
    when(method, "paused/since", now) + &by.unwrap_or_default()
}
