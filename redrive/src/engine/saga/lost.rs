//! Work whose task is gone: its saga would wait for ever.
//!
//! *State.* Where the walk over the sagas that are under way has come to, and those that it suspects: they had work without a task.
//!
//! *Invariants.* Work is lost if its saga waits for its outcome, and neither a task nor a dead letter has it, nor is a word about its end on
//! its way, at two looks a minute apart between which nothing was written to the journal. The journal is read first and the tasks after it:
//! whoever ends a task writes the journal before that. What is found is written only if the journal is still as it was read, so whatever was
//! under way meanwhile goes before it. A saga that has lost work is stuck, and people are told; all that they can do about a failed step
//! they can do about lost work. If the task is there after all, its outcome still counts.
//!
//! *Failure.* Nothing is ever lost by this code; it finds what was lost otherwise: by a database that was restored in part, by hand, or by a
//! mistake. Whatever cannot be read is passed over, and looked at again in the next round.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::saga::{SagaState, State, Work};
use crate::store::{DeadFilter, SagaRecord};
use crate::task::Task;

use super::people::of_saga;
use super::tell::Tell;
use super::{ENDED, STOP, StepParams};
use crate::engine::Shared;

/// The time between two looks, and the time for which nothing has happened to a saga that is looked at.
const EVERY: Duration = Duration::from_secs(60);
/// Number of sagas of a look. A hundred thousand that are under way are looked at in about eight hours.
const SOME: u32 = 200;
/// Most tasks and dead letters of a saga that are read. If there are more, nothing is called lost.
const MOST_TASKS: usize = 1_000;

/// The walk of one node. See the module.
#[derive(Debug, Default)]
pub(super) struct Walk {
    looked_at: Option<Timestamp>,
    is_going_back: bool,
    after: Option<(Timestamp, String)>,
    /// Sagas, and the number of events that each had.
    suspects: HashMap<String, i64>,
}

impl Walk {
    fn is_due(&mut self, now: Timestamp) -> bool {
        let is_due = self.looked_at.is_none_or(|before| before + EVERY <= now);
        if is_due {
            self.looked_at = Some(now);
        }
        is_due
    }

    fn state(&self) -> SagaState {
        if self.is_going_back { SagaState::Compensating } else { SagaState::Running }
    }

    /// Goes on after this page, or with the sagas of the other state.
    fn turn_page(&mut self, last: Option<(Timestamp, String)>) {
        self.is_going_back ^= last.is_none();
        self.after = last;
    }
}

impl Shared {
    /// Looks for lost work, if it is time to: at some sagas, and again at those that were suspected.
    pub(super) async fn look_for_lost_work(&self, walk: &mut Walk, now: Timestamp) -> Result<()> {
        if !walk.is_due(now) {
            return Ok(());
        }
        for (id, seq) in std::mem::take(&mut walk.suspects) {
            for record in self.load_readable(&[&id]).await? {
                if record.summary.seq == seq {
                    self.report_lost_work(&id, record).await?;
                }
            }
        }
        let page = self.store.sagas_since(walk.state(), walk.after.as_ref(), now - EVERY, SOME).await?;
        let ids: Vec<&str> = page.iter().map(|(_, id)| &**id).collect();
        for record in self.load_readable(&ids).await? {
            let (id, seq) = (record.summary.id.clone(), record.summary.seq);
            let is_quiet = record.journal.last().is_some_and(|last| last.at + EVERY <= now);
            if is_quiet && !self.lost_work(record).await?.is_empty() {
                walk.suspects.insert(id, seq);
            }
        }
        walk.turn_page(page.into_iter().next_back());
        Ok(())
    }

    /// Reads these sagas, but for those that this node cannot read: its key for them may be missing.
    async fn load_readable(&self, ids: &[&str]) -> Result<Vec<SagaRecord>> {
        match self.store.load_sagas(ids).await {
            Err(e) if !e.is_transient() => {}
            result => return result,
        }
        let mut readable = Vec::new();
        for id in ids {
            match self.store.load_sagas(&[id]).await {
                Err(e) if e.is_transient() => return Err(e),
                Err(e) => tracing::debug!(saga = id, error = %e, "whether a saga has lost work is not known"),
                Ok(record) => readable.extend(record),
            }
        }
        Ok(readable)
    }

    async fn report_lost_work(&self, id: &str, record: SagaRecord) -> Result<()> {
        let seq = record.summary.seq;
        let lost = self.lost_work(record).await?;
        if lost.is_empty() {
            return Ok(());
        }
        let steps: Vec<&str> = lost.iter().filter_map(|work| work.step.as_deref()).collect();
        let (steps, n) = (steps.join(", "), lost.len() as u64);
        if self.sagas.journals.tell(id, Tell::Lost(lost, seq)).await?.is_new {
            tracing::error!(saga = id, steps, "the tasks of a saga are gone; it cannot go on by itself");
            metrics::counter!("redrive_saga_lost").increment(n);
        }
        Ok(())
    }

    /// The work that a saga waits for and that nobody has.
    async fn lost_work(&self, record: SagaRecord) -> Result<Vec<Work>> {
        let id = record.summary.id.clone();
        let state = match self.sagas.journals.memory.read(record) {
            Ok(kept) => kept.state.clone(),
            Err(e) => {
                tracing::debug!(saga = id, error = %e, "whether a saga has lost work is not known");
                return Ok(Vec::new());
            }
        };
        let mut work = state.under_way();
        if work.is_empty() {
            return Ok(work);
        }
        let tasks = self.saga_tasks(&id).await?;
        let dead = self.store.dead(&DeadFilter::from(of_saga(&id)), MOST_TASKS as u32).await?;
        if tasks.len() >= MOST_TASKS || dead.len() >= MOST_TASKS {
            return Ok(Vec::new());
        }
        work.retain(|work| {
            let is_there = tasks.iter().any(|task| may_have(task, work));
            !is_there
                && !dead.iter().any(|letter| may_have(&letter.task, work) && is_current(&letter.task, work, &state))
        });
        Ok(work)
    }
}

/// Tells if a task does this work, or brings word about its end. A task that cannot be read may do either.
fn may_have(task: &Task, work: &Work) -> bool {
    if task.method == STOP {
        return false;
    }
    task.method == ENDED || params(task).is_none_or(|params| params.work == *work)
}

/// Tells if a dead letter is of the task that has this work now, and not of one before it.
fn is_current(task: &Task, work: &Work, state: &State) -> bool {
    params(task).is_none_or(|params| state.begun(work).is_of(task.id, params.seq))
}

fn params(task: &Task) -> Option<StepParams> {
    serde_json::from_str(&task.params).ok()
}
