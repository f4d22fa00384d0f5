//! The load: enqueues of every sort at a steady rate, each noted before it is asked for and after it is answered.
//!
//! Besides single ones there are batches, tasks in a caller's transaction beside a row of `soak_business`, tasks that are
//! cancelled a little later, and keys that every node enqueues at the same time, twice: a key is a slot of time, so nodes
//! need not talk to agree on it. When the file `drain` appears, nothing new is asked for; when the last answer is there, a
//! file `NAME.quiet` says so.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redrive::store::Tx;
use redrive::{Engine, Enqueued, NewTask};
use sqlx::AssertSqlSafe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::chance::Chance;
use crate::clock::{self, pause_ms};
use crate::ledger::{Ending, Event, Ledger};
use crate::node::Node;
use crate::plan::{Call, Plan};

const TICK_MS: u64 = 50;
/// A new key every so often.
const SLOT_MS: u64 = 250;
/// Enqueues under way at the most: while the database is away, no more are added.
const MOST: u32 = 300;

pub struct Producer {
    asker: Arc<Asker>,
    chance: Chance,
    seed: u64,
    rate: u64,
    dir: PathBuf,
    name: String,
    counter: AtomicU64,
    slot: u64,
    under_way: Arc<Semaphore>,
}

/// What asks for tasks, and notes the answers.
struct Asker {
    engine: Engine,
    ledger: Arc<Ledger>,
}

impl Producer {
    pub fn new(engine: Engine, ledger: Arc<Ledger>, node: &Node) -> Self {
        Self {
            asker: Arc::new(Asker { engine, ledger }),
            chance: Chance::new(node.seed, &node.name()),
            seed: node.seed,
            rate: node.rate,
            dir: node.dir.clone(),
            name: node.name(),
            counter: AtomicU64::new(0),
            slot: 0,
            under_way: Arc::new(Semaphore::new(MOST as usize)),
        }
    }

    /// Never ends by itself.
    pub async fn run(mut self) {
        let mut owed = 0;
        while !self.dir.join("drain").exists() {
            owed = (owed + self.rate * TICK_MS).min(self.rate * 1_000);
            while owed >= 1_000 {
                owed = owed.saturating_sub(1_000 * self.ask_something());
            }
            self.ask_for_key();
            pause_ms(TICK_MS).await;
        }
        _ = self.under_way.acquire_many(MOST).await;
        if let Err(e) = std::fs::write(self.dir.join(format!("{}.quiet", self.name)), "") {
            tracing::error!(error = %e, "cannot say that we are quiet");
        }
        std::future::pending::<()>().await;
    }

    /// Asks for one or several tasks; how many.
    fn ask_something(&mut self) -> u64 {
        let Ok(permit) = self.under_way.clone().try_acquire_owned() else { return 1 };
        let asker = self.asker.clone();
        match self.chance.below(100) {
            0..4 => {
                let n = self.chance.between(5, 20);
                let calls = (0..n).map(|_| self.call()).collect();
                spawn(permit, async move { asker.ask_many(calls).await });
                n
            }
            4..12 => {
                let ending = if self.chance.percent(60) { Ending::Commit } else { Ending::Rollback };
                let call = Call { plan: Plan::draw_done(&mut self.chance), ..self.call() };
                spawn(permit, async move { asker.ask_in_transaction(call, ending).await });
                1
            }
            _ => {
                let (call, wait) = (self.call(), self.chance.between(50, 1_500));
                spawn(permit, async move { asker.ask(call, wait).await });
                1
            }
        }
    }

    fn call(&mut self) -> Call {
        let n = format!("{}.{}", self.name, self.counter.fetch_add(1, Ordering::Relaxed));
        Call { n, plan: Plan::draw(&mut self.chance) }
    }

    /// The key of this moment, twice.
    fn ask_for_key(&mut self) {
        let slot = clock::now() / 1_000 / SLOT_MS;
        if self.rate == 0 || slot == self.slot {
            return;
        }
        self.slot = slot;
        let key = format!("slot-{slot}");
        let plan = Plan::draw_done(&mut Chance::new(self.seed, &key));
        for _ in 0..2 {
            let Ok(permit) = self.under_way.clone().try_acquire_owned() else { return };
            let (asker, key, call) = (self.asker.clone(), key.clone(), Call { plan, ..self.call() });
            spawn(permit, async move { asker.ask_with_key(call, key).await });
        }
    }
}

fn spawn(permit: OwnedSemaphorePermit, asking: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async move {
        asking.await;
        drop(permit);
    });
}

impl Asker {
    /// One task, half of them without a key; one that is to be cancelled is, after a while.
    async fn ask(&self, call: Call, wait: u64) {
        let Some(new) = self.asked(&call, None, None) else { return };
        let new = if call.n.ends_with(['0', '2', '4', '6', '8']) { new.no_key() } else { new };
        let answer = self.engine.enqueue(new).await;
        self.answered(&call, &answer);
        if let (Plan::Cancel, Ok(enqueued)) = (call.plan, answer) {
            pause_ms(wait).await;
            let answer = format!("{:?}", self.engine.cancel(enqueued.id).await);
            self.ledger.write(Event::Cancelled { n: call.n, id: enqueued.id.as_i64(), answer });
        }
    }

    async fn ask_with_key(&self, call: Call, key: String) {
        let Some(new) = self.asked(&call, Some(key.clone()), None) else { return };
        // The key outlives its task, so that however late the others are, it is one task.
        let new = new.key(key).dedup_for(Duration::from_secs(3_600));
        self.answered(&call, &self.engine.enqueue(new).await);
    }

    async fn ask_many(&self, calls: Vec<Call>) {
        let tasks: Vec<NewTask> = calls.iter().filter_map(|call| self.asked(call, None, None)).collect();
        match self.engine.enqueue_many(tasks).await {
            Ok(answers) => calls.iter().zip(answers).for_each(|(call, answer)| self.answered(call, &Ok(answer))),
            Err(e) => calls.iter().for_each(|call| self.failed(call, &e)),
        }
    }

    /// A task and a business row, together or not at all.
    async fn ask_in_transaction(&self, call: Call, ending: Ending) {
        let Some(new) = self.asked(&call, None, Some(ending)) else { return };
        match (self.transact(&call, new, ending).await, ending) {
            (Ok(answer), Ending::Commit) => {
                self.answered(&call, &Ok(answer));
                self.engine.wake();
            }
            (Ok(_), Ending::Rollback) => self.ledger.write(Event::RolledBack { n: call.n }),
            (Err(e), _) => self.failed(&call, &e),
        }
    }

    async fn transact(&self, call: &Call, new: NewTask, ending: Ending) -> anyhow::Result<Enqueued> {
        let mut tx = self.engine.store().begin().await?;
        let sql = AssertSqlSafe(format!("INSERT INTO soak_business (n) VALUES ('{}')", call.n));
        match &mut tx {
            Tx::Sqlite(tx) => _ = sqlx::raw_sql(sql).execute(&mut **tx).await?,
            Tx::Postgres(tx) => _ = sqlx::raw_sql(sql).execute(&mut **tx).await?,
            Tx::MySql(tx) => _ = sqlx::raw_sql(sql).execute(&mut **tx).await?,
            _ => anyhow::bail!("a database that this soak does not know"),
        }
        let answer = self.engine.enqueue_in(&mut tx, new).await?;
        match ending {
            Ending::Commit => tx.commit().await?,
            Ending::Rollback => tx.rollback().await?,
        }
        Ok(answer)
    }

    /// The task, after it is noted that it will be asked for.
    fn asked(&self, call: &Call, key: Option<String>, transaction: Option<Ending>) -> Option<NewTask> {
        self.ledger.write(Event::Asked { call: call.clone(), key, transaction });
        call.task().inspect_err(|e| self.failed(call, e)).ok()
    }

    fn answered(&self, call: &Call, answer: &redrive::Result<Enqueued>) {
        match answer {
            Ok(Enqueued { id, existed }) => {
                self.ledger.write(Event::Acked { n: call.n.clone(), id: id.as_i64(), existed: *existed });
            }
            Err(e) => self.failed(call, e),
        }
    }

    fn failed(&self, call: &Call, error: &impl std::fmt::Display) {
        self.ledger.write(Event::Failed { n: call.n.clone(), error: error.to_string() });
    }
}
