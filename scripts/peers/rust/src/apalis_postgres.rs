//! apalis-postgres: the PostgreSQL backend of apalis.

use std::time::Duration;

use anyhow::{Result, anyhow};
use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};

use crate::{Load, Peer, key, pieces, ran};

#[derive(Clone)]
pub(crate) struct Apalis {
    storage: PostgresStorage<u64>,
    pool: PgPool,
}

/// Its results go to the database with the acknowledgement. Without `lock_tasks` it writes no further "running" mark
/// between claim and acknowledgement; the claim itself, with SKIP LOCKED, stays.
fn config() -> Config {
    Config::default().queue("bench").lock_tasks(false)
}

pub(crate) async fn open(url: &str) -> Result<Apalis> {
    let pool = PgPool::connect_with(url.parse()?).await?;
    PostgresStorage::setup(&pool).await?;
    let pool = sqlx::pool::PoolOptions::new().max_connections(64).connect(url).await?;
    Ok(Apalis { storage: PostgresStorage::new(&pool).with_config(config()), pool })
}

async fn noop(n: u64) -> Result<(), BoxDynError> {
    ran(n);
    Ok(())
}

fn task(n: u64, keyed: bool) -> Task<u64> {
    let task = TaskBuilder::new(n);
    if keyed { task.idempotency_key(key(n)).build() } else { task.build() }
}

impl Peer for Apalis {
    const NAME: &'static str = "apalis-postgres";
    const VERSION: &'static str = "1.0.0";
    const SETTINGS: &'static str = "push_task with an idempotency_key over a pool of 64; push_all in pieces of 5,000. Worker: \
        with_pubsub (NOTIFY), concurrency 1,000, lock_tasks off; batch_size 1,000 and a timer of 10 ms for drain, 10 and 100 ms \
        for latency.";

    async fn add(&self, n: u64) -> Result<()> {
        self.storage.clone().push_task(task(n, true)).await.map_err(|e| anyhow!("{e}"))
    }

    async fn add_many(&self, tasks: u64, keyed: bool) -> Result<()> {
        let mut storage = self.storage.clone();
        for piece in pieces(tasks, 5_000) {
            let mut piece = futures::stream::iter(piece.map(|n| task(n, keyed)));
            storage.push_all(&mut piece).await.map_err(|e| anyhow!("{e}"))?;
        }
        Ok(())
    }

    /// Woken by NOTIFY, and by a timer, which it needs to write its last acknowledgements.
    async fn work(&self, load: Load) -> Result<()> {
        let (batch, timer) = match load {
            Load::Drain => (1_000, 10),
            Load::Latency => (10, 100),
        };
        let storage = PostgresStorage::<u64>::new(&self.pool).with_config(config().batch_size(batch));
        let backend = storage.with_pubsub().poll_with_interval(Duration::from_millis(timer));
        let worker = WorkerBuilder::new("bench").backend(backend).concurrency(1_000).build(noop);
        tokio::spawn(async move { worker.run().await.expect("the worker of apalis runs") });
        Ok(())
    }

    fn find_unfinished(&self) -> &'static str {
        "SELECT 1 FROM apalis.jobs WHERE status <> 'Done' LIMIT 1"
    }
}
