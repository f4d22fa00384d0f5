//! `redrive node`: who shares a database.

use clap::Subcommand;
use redrive::Timestamp;
use redrive::store::Node;

use crate::cli::Database;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the nodes: who is alive, since when, and what each handles.
    Ls {
        #[command(flatten)]
        database: Database,
        /// One JSON object a line instead of a table.
        #[arg(long)]
        json: bool,
        /// Also those that have stopped or died.
        #[arg(long)]
        all: bool,
    },
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let Self::Ls { database, json, all } = self;
        let store = database.open().await?;
        let now = store.now().await?;
        let nodes: Vec<Node> = store.nodes().await?.into_iter().filter(|n| all || !n.dead).collect();
        if json {
            nodes.iter().for_each(|n| println!("{}", as_json(n)));
        } else {
            print_table(&nodes, now);
        }
        Ok(())
    }
}

fn state(node: &Node) -> &'static str {
    match (node.dead, node.leaving) {
        (true, _) => "dead",
        (false, true) => "leaving",
        (false, false) => "alive",
    }
}

fn as_json(node: &Node) -> serde_json::Value {
    serde_json::json!({
        "number": node.number,
        "name": node.registration.name,
        "state": state(node),
        "beat_at": node.beat_at,
        "started_at": node.started_at,
        "build": node.registration.build,
        "methods": node.registration.methods,
    })
}

fn print_table(nodes: &[Node], now: Timestamp) {
    if nodes.is_empty() {
        println!("no node is alive; start one with `redrive serve`, or see stopped ones with --all");
        return;
    }
    let mut table = comfy_table::Table::new();
    table.set_header(["node", "name", "state", "last beat", "up for", "build", "methods"]);
    for node in nodes {
        let ago = |t: Timestamp| format!("{} s", now.since(t).as_secs());
        let who = &node.registration;
        table.add_row([
            node.number.to_string(),
            who.name.clone(),
            state(node).into(),
            format!("{} ago", ago(node.beat_at)),
            ago(node.started_at),
            who.build.clone(),
            who.methods.join(", "),
        ]);
    }
    println!("{table}");
}
