//! `redrive method`: what waits of each method, and holding one back.

use clap::Subcommand;
use redrive::store::{MOST_COUNTED, MethodDepth, Paused};
use redrive::{Lane, Timestamp};

use crate::cli::Database;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List methods that have tasks or are paused: how many there are, how late they are, who handles them.
    Ls {
        #[command(flatten)]
        database: Database,
        /// One JSON object a line instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Hold the tasks of a method back, on all nodes, until it is resumed. What runs goes on.
    Pause(Change),
    /// Let the tasks of a paused method run again.
    Resume(Change),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    /// The method's name.
    method: String,
    #[command(flatten)]
    database: Database,
    /// Who you are, for the audit. Default: the name of your login.
    #[arg(long, env = "USER")]
    by: Option<String>,
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Ls { database, json } => list(&database, json).await,
            Self::Pause(change) => {
                let store = change.database.open().await?;
                let done = store.pause(&change.method, change.by.as_deref(), store.now().await?).await?;
                let said = if done { "paused; nodes follow within their beat" } else { "was paused already" };
                println!("{}: {said}", change.method);
                Ok(())
            }
            Self::Resume(change) => {
                let store = change.database.open().await?;
                let done = store.resume(&change.method, change.by.as_deref(), store.now().await?).await?;
                let said = if done { "resumed; nodes follow within their beat" } else { "was not paused" };
                println!("{}: {said}", change.method);
                Ok(())
            }
        }
    }
}

/// A method in the list.
struct Line {
    method: String,
    depth: u64,
    late: u64,
    nodes: usize,
    paused: Option<Paused>,
}

async fn list(database: &Database, json: bool) -> anyhow::Result<()> {
    let store = database.open().await?;
    let (depths, paused, nodes) = (store.depths().await?, store.paused().await?, store.nodes().await?);
    let now = store.now().await?;
    let handlers = |lane: Lane| {
        nodes.iter().filter(|n| !n.dead && n.registration.methods.iter().any(|m| Lane::of(m) == lane)).count()
    };
    let line = |method: &str, depth: Option<&MethodDepth>| Line {
        method: method.to_owned(),
        depth: depth.map_or(0, |d| d.depth),
        late: depth.and_then(|d| d.oldest_due).map_or(0, |due| now.since(due).as_secs()),
        nodes: handlers(Lane::of(method)),
        paused: paused.iter().find(|p| p.method == method).cloned(),
    };
    let mut lines: Vec<Line> = depths.iter().map(|d| line(&d.method, Some(d))).collect();
    lines.extend(paused.iter().filter(|p| depths.iter().all(|d| d.method != p.method)).map(|p| line(&p.method, None)));
    if json {
        lines.iter().for_each(|line| println!("{}", line.json()));
    } else {
        print_table(&lines, now);
    }
    Ok(())
}

impl Line {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "method": self.method,
            "depth": self.depth,
            "late_seconds": self.late,
            "nodes": self.nodes,
            "paused": self.paused,
        })
    }
}

fn print_table(lines: &[Line], now: Timestamp) {
    if lines.is_empty() {
        println!("nothing waits, and no method is paused");
        return;
    }
    let mut table = comfy_table::Table::new();
    table.set_header(["method", "tasks", "late by", "nodes", "paused"]);
    for line in lines {
        let more = if line.depth >= MOST_COUNTED { "at least " } else { "" };
        let paused = |p: &Paused| {
            let by = p.by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
            format!("for {} s{by}", now.since(p.since).as_secs())
        };
        table.add_row([
            line.method.clone(),
            format!("{more}{}", line.depth),
            format!("{} s", line.late),
            if line.nodes == 0 { "none: unhandled".into() } else { line.nodes.to_string() },
            line.paused.as_ref().map(paused).unwrap_or_default(),
        ]);
    }
    println!("{table}");
}
