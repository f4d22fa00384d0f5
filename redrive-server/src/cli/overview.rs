//! `redrive overview`: how much there is, at one look.

use serde_json::Value;

use super::Run;
use super::api::{Api, Query};
use super::out::{Column, Out, count, details, line, short, text, when};

#[derive(Debug, clap::Args)]
pub(super) struct Overview {}

const COLUMNS: &[Column] = &[
    ("method", |method, _| short(method, "method")),
    ("tasks", |method, _| count(method, "tasks")),
    ("dead", |method, _| count(method, "dead")),
    ("first due", |method, now| when(method, "oldest_due", now)),
    ("paused", |method, _| if text(method, "paused") == "true" { "yes".into() } else { String::new() }),
];

impl Run for Overview {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        let all = api.get(&["overview"], &Query::new()).await?;
        if out.json {
            return Ok(line(all)?);
        }
        details(&[
            ("waiting", count(&all, "pending")),
            ("running", count(&all, "running")),
            ("oldest attempt", when(&all, "oldest_running", out.now)),
            ("dead letters", count(&all, "dead") + &reasons(&all)),
            ("in the archive", count(&all, "archived")),
        ])?;
        match all.get("methods").and_then(Value::as_array).map(Vec::as_slice) {
            Some(methods @ [_, ..]) => Ok(out.list(methods, COLUMNS, "")?),
            _ => Ok(()),
        }
    }
}

/// " (exhausted 3, rejected 1)"
fn reasons(all: &Value) -> String {
    let reasons = all.get("dead_by_reason").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let shown: Vec<String> = reasons.iter().map(|pair| format!("{} {}", text(pair, "0"), count(pair, "1"))).collect();
    if shown.is_empty() { String::new() } else { format!(" ({})", shown.join(", ")) }
}
