//! From one table to monthly ones, while nodes work and suffer.
//!
//! *State.* The database says how far it is; a call that failed is made again.
//!
//! *Invariants.* The first call makes the tables and announces them; nothing is written into them before every node has said,
//! by its beat, that it reads them. So the witness is set on the new tables between the first call and the second, and
//! misses nothing. Should it ever do so, the checker finds tasks that nobody has seen being inserted.
//!
//! *Failure.* The database may be away, or a node dead and not yet declared so: then it takes longer.

use std::time::Duration;

use anyhow::Context as _;
use redrive::Store;
use tokio::task::JoinHandle;

use crate::audit;
use crate::clock::{self, pause_ms};
use crate::conductor::{Run, TABLES};
use crate::database::{Kind, Raw};

/// How long it may take once all is healed.
const PATIENCE: Duration = Duration::from_secs(30);
const BETWEEN_CALLS_MS: u64 = 100;

pub struct Switch {
    kind: Kind,
    url: String,
    /// Gives how long it took, and how many calls.
    work: Option<JoinHandle<(Duration, u32)>>,
}

impl Switch {
    pub fn new(run: &Run, url: &str) -> Self {
        Self { kind: run.database, url: url.to_owned(), work: None }
    }

    /// `false`: it has begun already.
    pub fn begin(&mut self) -> bool {
        if self.work.is_some() {
            return false;
        }
        self.work = Some(tokio::spawn(go_monthly(self.kind, self.url.clone())));
        true
    }

    /// Waits until it is done.
    pub async fn end(&mut self) -> anyhow::Result<(Duration, u32)> {
        let work = self.work.take().context("the change of the layout has begun")?;
        Ok(tokio::time::timeout(PATIENCE, work).await.context("the change of the layout has no end")??)
    }
}

async fn go_monthly(kind: Kind, url: String) -> (Duration, u32) {
    let (began, mut calls, mut is_watched) = (clock::now(), 0, false);
    loop {
        calls += 1;
        let answer = call(&url).await;
        if !is_watched {
            // Before the next call, whatever came of this one: it may have been done without our hearing of it.
            is_watched = watched(kind, &url).await;
        }
        if answer.is_ok_and(|missing| missing == 0) {
            return (Duration::from_micros(clock::now() - began), calls);
        }
        pause_ms(BETWEEN_CALLS_MS).await;
    }
}

/// How many nodes have not said yet that they read the new tables.
async fn call(url: &str) -> anyhow::Result<usize> {
    let store = Store::open(url).await?;
    let missing = store.go_monthly(TABLES, store.now().await?).await;
    store.close().await;
    Ok(missing?.len())
}

/// Sets the witness on the new tables. `false`: there are none yet.
async fn watched(kind: Kind, url: &str) -> bool {
    loop {
        match watch(kind, url).await {
            Ok(are_there) => return are_there,
            Err(_) => pause_ms(BETWEEN_CALLS_MS).await, // the database is away
        }
    }
}

async fn watch(kind: Kind, url: &str) -> anyhow::Result<bool> {
    let mut raw = Raw::connect(kind, url).await?;
    let new: Vec<String> = raw.tables("task").await?.into_iter().filter(|table| table != "retry_task").collect();
    audit::watch(kind, &mut raw, &new).await?;
    Ok(!new.is_empty())
}
