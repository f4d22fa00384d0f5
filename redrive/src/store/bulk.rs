//! What people do to many at once: batch by batch, with a rate, a dry run, and a way to stop.
//!
//! *State.* [`BulkRun`]: where the walk is, and what came of it so far. It lives in one process; what it has done is in the
//! database, and beginning again with the same filter goes on with the rest.
//!
//! *Invariants.* A batch is 500 at the most and has a transaction of its own (tasks: one for each table). The walk goes from
//! newer ids to older ones, so it ends, and what comes in meanwhile is not touched. There is one record in the audit: written
//! before the first batch, brought up to date after each.
//!
//! *Failure.* A passing failure of the database is the caller's to repeat: the step that failed is done again, and who was
//! reached by it already is counted as *gone* or done, never done twice. Any other failure is that of single tasks: the batch is
//! then halved until they are alone, and they are named.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::bisect::Bisect;
use crate::clock::{Clock, Timestamp, pause};
use crate::error::{Problems, Result};
use crate::id::{IdSet, TaskId};
use crate::policy::Policy;
use crate::task::storable;

use super::Store;
use super::acting::with_policy;
use super::audit::{AuditEntry, check_by};
use super::count::Count;
use super::search::{DeadFilter, Found};
use super::task::TaskFilter;

/// Rows of one batch.
pub const MOST_IN_BATCH: u32 = 500;
/// A dry run counts up to here.
pub const MOST_DRY: u64 = 100_000;
/// Bytes of what the audit has of whom it was done to.
const MOST_SHOWN: usize = 8_000;
/// Failures that are named.
const MOST_FAILED: usize = 100;

/// What is to be done to many.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Bulk {
    /// What, and to which.
    pub what: BulkWhat,
    /// Who answers for it.
    pub by: String,
    /// What they say about it.
    pub note: Option<String>,
    /// How many in a second, at the most. Default: as many as go.
    pub per_second: Option<u32>,
    /// How many in one transaction, from 1 to 500. Default: 500.
    pub batch: u32,
}

/// What, and to which.
#[derive(Clone, Debug, PartialEq)]
pub enum BulkWhat {
    /// To tasks.
    Tasks(TaskAction, Which<TaskFilter>),
    /// To dead letters.
    Dead(DeadAction, Which<DeadFilter>),
}

/// What is done to tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskAction {
    /// [`Store::cancel`].
    Cancel,
    /// [`Store::fail`].
    Fail,
    /// [`Store::retry_now`].
    RetryNow,
}

/// What is done to dead letters.
#[derive(Clone, Debug, PartialEq)]
pub enum DeadAction {
    /// [`Store::redrive`], perhaps under another policy.
    Redrive(Option<Arc<Policy>>),
    /// [`Store::resolve`].
    Resolve,
    /// [`Store::discard`].
    Discard,
}

/// To which.
#[derive(Clone, Debug, PartialEq)]
pub enum Which<F> {
    /// These.
    Ids(Vec<TaskId>),
    /// Those that a filter finds.
    Filter(F),
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkResult {
    /// How many it was done to.
    pub done: u64,
    /// How many are running and will be stopped after their attempt, unless that succeeds.
    pub requested: u64,
    /// How many were passed over, by reason: `twin`, `gone`, `running`, `busy`.
    pub skipped: BTreeMap<&'static str, u64>,
    /// How many failed.
    pub failed: u64,
    /// The first of them, and why.
    pub failures: Vec<(TaskId, String)>,
}

/// How far a bulk is after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// Not before this time: the rate says so. Nothing was done.
    Wait(Timestamp),
    /// That was all.
    Finished,
}

/// A bulk that is under way. Each [`step`](Self::step) is a batch; between them it can be left at any time.
#[derive(Debug)]
pub struct BulkRun {
    store: Store,
    bulk: Bulk,
    record: TaskId,
    left: Left,
    ready_at: Timestamp,
    result: BulkResult,
}

/// What is still to be done.
#[derive(Clone, Debug)]
enum Left {
    Ids(Vec<TaskId>),
    Tasks(TaskFilter),
    Dead(DeadFilter),
    Nothing,
}

impl Bulk {
    /// Something to be done to tasks.
    pub fn tasks(action: TaskAction, which: Which<TaskFilter>, by: impl Into<String>) -> Self {
        Self::new(BulkWhat::Tasks(action, which), by.into())
    }

    /// Something to be done to dead letters.
    pub fn dead(action: DeadAction, which: Which<DeadFilter>, by: impl Into<String>) -> Self {
        Self::new(BulkWhat::Dead(action, which), by.into())
    }

    fn new(what: BulkWhat, by: String) -> Self {
        Self { what, by, note: None, per_second: None, batch: MOST_IN_BATCH }
    }

    /// Whether these values make sense; if not, all that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        check_by(&self.by)?;
        let mut problems = Problems::default();
        problems.require((1..=MOST_IN_BATCH).contains(&self.batch), "batch", || {
            format!("must be from 1 to {MOST_IN_BATCH}")
        });
        problems.require(self.per_second != Some(0), "per_second", || "must be at least 1".into());
        self.policy().map_or(Ok(()), Policy::validate)?;
        problems.into_result()
    }

    /// The policy that letters are given instead of their own.
    fn policy(&self) -> Option<&Policy> {
        match &self.what {
            BulkWhat::Dead(DeadAction::Redrive(policy), _) => policy.as_deref(),
            _ => None,
        }
    }

    fn action(&self) -> &'static str {
        match &self.what {
            BulkWhat::Tasks(TaskAction::Cancel, _) => "task.cancel",
            BulkWhat::Tasks(TaskAction::Fail, _) => "task.fail",
            BulkWhat::Tasks(TaskAction::RetryNow, _) => "task.retry_now",
            BulkWhat::Dead(DeadAction::Redrive(_), _) => "dead.redrive",
            BulkWhat::Dead(DeadAction::Resolve, _) => "dead.resolve",
            BulkWhat::Dead(DeadAction::Discard, _) => "dead.discard",
        }
    }

    /// To which, in words. Nothing in a filter is params.
    /// To whom, for the audit: the ids, or what was given of the filter.
    fn shown(&self) -> Json {
        let mut which = match &self.what {
            BulkWhat::Tasks(_, Which::Ids(ids)) | BulkWhat::Dead(_, Which::Ids(ids)) => json!(ids),
            BulkWhat::Tasks(_, Which::Filter(filter)) => json!(filter),
            BulkWhat::Dead(_, Which::Filter(filter)) => json!(filter),
        };
        which.as_object_mut().into_iter().for_each(|filter| filter.retain(|_, value| !value.is_null()));
        let text = which.to_string();
        if text.len() > MOST_SHOWN { storable(&text, MOST_SHOWN).into() } else { which }
    }

    fn left(&self) -> Left {
        match &self.what {
            BulkWhat::Tasks(_, Which::Ids(ids)) | BulkWhat::Dead(_, Which::Ids(ids)) => {
                let mut seen = IdSet::default();
                Left::Ids(ids.iter().copied().filter(|id| seen.insert(*id)).collect())
            }
            BulkWhat::Tasks(_, Which::Filter(filter)) => Left::Tasks(filter.clone()),
            BulkWhat::Dead(_, Which::Filter(filter)) => Left::Dead(filter.clone()),
        }
    }

    /// How many go into the next batch: no more than a second's worth.
    fn size(&self) -> u32 {
        self.batch.min(self.per_second.unwrap_or(u32::MAX)).max(1)
    }
}

impl BulkResult {
    pub(super) fn skip(&mut self, why: &'static str, n: u64) {
        if n > 0 {
            *self.skipped.entry(why).or_default() += n;
        }
    }

    fn fail(&mut self, id: TaskId, why: String) {
        self.failed += 1;
        if self.failures.len() < MOST_FAILED {
            self.failures.push((id, why));
        }
    }

    fn add(&mut self, batch: Self) {
        self.done += batch.done;
        self.requested += batch.requested;
        batch.skipped.into_iter().for_each(|(why, n)| self.skip(why, n));
        self.failed += batch.failed;
        let room = MOST_FAILED.saturating_sub(self.failures.len());
        self.failures.extend(batch.failures.into_iter().take(room));
    }

    /// How many were looked at.
    pub fn total(&self) -> u64 {
        self.done + self.requested + self.failed + self.skipped.values().sum::<u64>()
    }
}

impl Store {
    /// Does it, from the first batch to the last, waiting as its rate says. After each batch `progress` is told how far it is
    /// and may break it off.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use redrive::store::{Bulk, TaskAction, TaskFilter, Which};
    /// use redrive::{Clock, NewTask, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
    /// let store = Store::open("sqlite::memory:").await?;
    /// let clock = Clock::starting_at(store.now().await?);
    /// store.insert(vec![NewTask::new("charge", &1)?, NewTask::new("charge", &2)?], clock.now()).await?;
    /// let charges = TaskFilter { method: Some("charge".into()), ..TaskFilter::default() };
    /// let bulk = Bulk::tasks(TaskAction::Cancel, Which::Filter(charges), "alice");
    /// assert_eq!(store.dry_run(&bulk).await?.n, 2);
    /// let result = store.bulk(bulk, &clock, |_| ControlFlow::Continue(())).await?;
    /// assert_eq!(result.done, 2);
    /// # Ok(()) }
    /// ```
    pub async fn bulk(
        &self,
        bulk: Bulk,
        clock: &Clock,
        mut progress: impl FnMut(&BulkResult) -> ControlFlow<()> + Send,
    ) -> Result<BulkResult> {
        let mut run = self.begin_bulk(bulk, clock.now()).await?;
        loop {
            match run.step(clock.now()).await? {
                Step::Wait(until) => pause(until.since(clock.now()).max(Duration::from_millis(1))).await,
                Step::Finished => break,
                Step::More if progress(&run.result).is_break() => break,
                Step::More => {}
            }
        }
        Ok(run.result)
    }

    /// The same step by step. The audit has its record from now on.
    pub async fn begin_bulk(&self, bulk: Bulk, now: Timestamp) -> Result<BulkRun> {
        bulk.validate()?;
        let asked = json!({ "which": bulk.shown(), "per_second": bulk.per_second });
        let asked = with_policy(asked, bulk.policy());
        let entry = AuditEntry::new(&bulk.by, bulk.action(), "many").changed(asked, None);
        let record = self.audit(&entry.noting(bulk.note.as_deref()), now).await?;
        let left = bulk.left();
        Ok(BulkRun { store: self.clone(), bulk, record, left, ready_at: now, result: BulkResult::default() })
    }

    /// How many it would be done to: all of them, or [`MOST_DRY`] and more. Nothing is written.
    pub async fn dry_run(&self, bulk: &Bulk) -> Result<Count> {
        bulk.validate()?;
        let (mut left, mut n) = (bulk.left(), 0);
        if let Left::Ids(ids) = &left {
            return self.count_ids(bulk, ids).await;
        }
        let mut looks = MOST_DRY / u64::from(super::search::ROWS) * 10; // also if it finds nothing
        while n < MOST_DRY && looks > 0 {
            let ids = self.next_of(&mut left, MOST_IN_BATCH).await?;
            n += ids.len() as u64;
            looks -= u64::from(ids.is_empty());
            if matches!(left, Left::Nothing) {
                return Ok(Count::up_to(u64::MAX, n));
            }
        }
        Ok(Count::up_to(0, n))
    }

    async fn count_ids(&self, bulk: &Bulk, ids: &[TaskId]) -> Result<Count> {
        let mut n = 0;
        for ids in ids.chunks(super::search::MOST_IDS) {
            let wanted = TaskFilter { ids: Some(ids.to_vec()), ..TaskFilter::default() };
            n += match bulk.what {
                BulkWhat::Tasks(..) => self.list_ids(&wanted).await?,
                BulkWhat::Dead(..) => self.search_dead_ids(&wanted.into(), u32::MAX).await?.items.len(),
            };
        }
        Ok(Count::up_to(u64::MAX, n as u64))
    }

    async fn list_ids(&self, filter: &TaskFilter) -> Result<usize> {
        Ok(self.search_ids(filter, u32::try_from(super::search::MOST_IDS).unwrap_or(u32::MAX)).await?.items.len())
    }

    /// The next ids, and what is left after them.
    async fn next_of(&self, left: &mut Left, limit: u32) -> Result<Vec<TaskId>> {
        let found = match left {
            Left::Nothing => return Ok(Vec::new()),
            Left::Ids(ids) => {
                let rest = ids.split_off(ids.len().min(limit as usize));
                let next = std::mem::replace(ids, rest);
                Found { continue_after: ids.first().copied(), items: next }
            }
            Left::Tasks(filter) => {
                let found = self.search_ids(filter, limit).await?;
                filter.after = found.continue_after;
                found
            }
            Left::Dead(filter) => {
                let found = self.search_dead_ids(filter, limit).await?;
                filter.task.after = found.continue_after;
                found
            }
        };
        if found.continue_after.is_none() {
            *left = Left::Nothing;
        }
        Ok(found.items)
    }
}

impl BulkRun {
    /// What came of it so far.
    pub fn result(&self) -> &BulkResult {
        &self.result
    }

    /// Does the next batch, if the rate allows it by now.
    pub async fn step(&mut self, now: Timestamp) -> Result<Step> {
        if matches!(self.left, Left::Nothing) {
            return Ok(Step::Finished);
        }
        if now < self.ready_at {
            return Ok(Step::Wait(self.ready_at));
        }
        let mut left = self.left.clone();
        let ids = self.store.next_of(&mut left, self.bulk.size()).await?;
        let batch = self.batch(&ids, now).await?;
        self.result.add(batch);
        self.left = left;
        let is_over = matches!(self.left, Left::Nothing);
        if !ids.is_empty() || is_over {
            let so_far = json!({ "result": self.result, "finished": is_over });
            self.store.audit_again(self.record, so_far).await?;
        }
        if let Some(rate) = self.bulk.per_second {
            self.ready_at = now + Duration::from_secs(1).mul_f64(ids.len() as f64 / f64::from(rate));
        }
        Ok(if is_over { Step::Finished } else { Step::More })
    }

    async fn batch(&self, ids: &[TaskId], now: Timestamp) -> Result<BulkResult> {
        if ids.is_empty() {
            return Ok(BulkResult::default());
        }
        match self.store.do_batch(&self.bulk, ids, now).await {
            Err(e) if !e.is_transient() => self.apart(ids, now).await,
            result => result,
        }
    }

    /// One of them cannot be done; the others can.
    async fn apart(&self, ids: &[TaskId], now: Timestamp) -> Result<BulkResult> {
        let mut result = BulkResult::default();
        let mut parts = Bisect::of(ids.to_vec());
        while let Some(part) = parts.next_part() {
            match self.store.do_batch(&self.bulk, &part, now).await {
                Ok(done) => result.add(done),
                Err(e) if e.is_transient() => return Err(e),
                Err(e) => parts.split(part).into_iter().for_each(|id| result.fail(id, e.to_string())),
            }
        }
        Ok(result)
    }
}
