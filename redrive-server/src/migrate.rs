//! `redrive migrate`: the schema, and how tasks are spread over tables.

use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use redrive::Store;
use redrive::store::{Layout, Node};

use crate::cli::{Database, line};

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    database: Database,
    /// How tasks are to be spread over tables. Default: as the database has it; a new one has a single table.
    ///
    /// From single to monthly nothing is copied, and nodes may go on running: the change is announced, each node says in its
    /// beat that it knows, then new tasks go into tables of their month. There is no way back.
    #[arg(long, value_enum)]
    layout: Option<Wanted>,
    /// How many tables each month has, from 1 to 64. Cannot be changed later.
    #[arg(long, default_value_t = 2)]
    tables: u8,
    /// How long to wait for running nodes to say that they know.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wanted {
    Single,
    Monthly,
}

/// How often the nodes are looked at.
const LOOK: Duration = Duration::from_millis(500);

impl Migrate {
    pub(crate) async fn run(&self) -> anyhow::Result<()> {
        let store = self.database.open().await?;
        match (self.layout, store.layout()) {
            (None, _) | (Some(Wanted::Single), Layout::Single) => {}
            (Some(Wanted::Single), layout) => bail!("the layout is {layout}; there is no way back to a single table"),
            (Some(Wanted::Monthly), _) => self.go_monthly(&store).await?,
        }
        Ok(line(format!("{}: the schema is up to date; layout: {}", store.shown_url(), store.layout()))?)
    }

    async fn go_monthly(&self, store: &Store) -> anyhow::Result<()> {
        let bar = ProgressBar::new_spinner();
        let wait = async {
            loop {
                let unaware = store.go_monthly(self.tables, store.now().await?).await?;
                if unaware.is_empty() {
                    return Ok(());
                }
                bar.set_message(format!("waiting for {}", names(&unaware)));
                bar.tick();
                pause(LOOK).await;
            }
        };
        let done: Result<redrive::Result<()>, _> = tokio::time::timeout(self.wait, wait).await;
        bar.finish_and_clear();
        match done {
            Ok(done) => Ok(done?),
            Err(_) => {
                let all = store.nodes().await?;
                let unaware: Vec<Node> = all.into_iter().filter(|n| !n.dead && !n.knows_months).collect();
                bail!(
                    "monthly tables are announced, but not used yet: {} did not say that it knows of them. Nodes of an earlier \
                     version have to be restarted with this one. Once all know, the change is made by itself; or run this again",
                    names(&unaware)
                )
            }
        }
    }
}

fn names(nodes: &[Node]) -> String {
    let name = |n: &Node| format!("node {} ({}, version {})", n.number, n.registration.name, n.registration.build);
    nodes.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[expect(clippy::disallowed_methods, reason = "it waits for other processes")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
