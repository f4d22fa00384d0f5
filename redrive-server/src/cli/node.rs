//! `redrive node`: who shares a database.

use clap::Subcommand;
use serde_json::Value;

use super::Run;
use super::api::{Api, Query};
use super::out::{Column, Out, short, span, text, time, when};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the nodes: who is alive, since when, and what each handles.
    Ls {
        /// Also those that have stopped or died; they are there for a week.
        #[arg(long)]
        all: bool,
    },
}

const COLUMNS: &[Column] = &[
    ("node", |node, _| text(node, "number")),
    ("name", |node, _| short(node, "name")),
    ("state", |node, _| text(node, "state")),
    ("last beat", |node, now| when(node, "beat_at", now)),
    ("lease", |node, _| text(node, "lease")),
    ("up for", |node, now| match time(node, "started_at") {
        Some(since) if !is_gone(node) => span(now.since(since)),
        _ => String::new(),
    }),
    ("build", |node, _| text(node, "build")),
    ("methods (shards of 64)", |node, _| methods(node)),
];

impl Run for Command {
    async fn run(self, api: &Api, out: Out) -> anyhow::Result<()> {
        let Self::Ls { all } = self;
        let answer = api.get(&["nodes"], &Query::new()).await?;
        let nodes = answer.get("nodes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let shown: Vec<Value> = nodes.iter().filter(|node| all || !is_gone(node)).cloned().collect();
        let none = "no node is alive; start one with `redrive serve`, or see stopped ones with --all";
        Ok(out.list(&shown, COLUMNS, none)?)
    }
}

fn is_gone(node: &Value) -> bool {
    matches!(text(node, "state").as_str(), "left" | "dead")
}

/// One under the other: there may be many.
fn methods(node: &Value) -> String {
    let names = node.get("methods").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let shards = |name: &str| node.get("shards")?.get(name)?.as_u64();
    let shown = |name: &Value| match name.as_str() {
        Some(name) => format!("{name} ({})", shards(name).unwrap_or(0)),
        None => String::new(),
    };
    names.iter().map(shown).collect::<Vec<_>>().join("\n")
}
