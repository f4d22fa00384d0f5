//! What the engine tells of itself, one word for each transition: counters through the `metrics` facade, events and
//! spans through `tracing`. Install a recorder before the engine is started.
//!
//! | metric | what |
//! | --- | --- |
//! | `redrive_enqueued`, `redrive_claimed`, `redrive_started`, `redrive_done`, `redrive_failed`, `redrive_postponed`, `redrive_cancelled`, `redrive_dead`, `redrive_rescued`, `redrive_lost` | counters by `method`; those that this node does not handle are `other` |
//! | `redrive_start_lag_seconds`, `redrive_attempt_seconds` | histograms by `method`: from due to started, from started to ended |
//! | `redrive_sweep_seconds` | histogram: time of one sweep |
//! | `redrive_insert_batch`, `redrive_scan_rows`, `redrive_claim_batch`, `redrive_settle_batch` | histograms: rows of a statement |
//! | `redrive_depth`, `redrive_lag_seconds`, `redrive_oldest_due_seconds` | gauges by `method`, from one node of the cluster; 0, 0 and NaN from the others. Of those that no node handles, the first 100, the rest as `other` |
//! | `redrive_oldest_attempt_seconds` | gauge by `method`: for how long the oldest attempt has been running on this node; 0 if none is |
//! | `redrive_dead_letters` | gauge by `reason`: letters that wait for a person, from one node of the cluster |
//! | `redrive_tables_past_retention` | gauge: monthly tables that are kept because of tasks in them |
//! | `redrive_view_age_seconds` | gauge: how old this node's view of the others is |
//! | `redrive_unhandled` | gauge: tasks of methods that no live node handles |
//! | `redrive_fenced` | counter: nodes that this one declared dead |
//! | `redrive_saga_ended` | counter by `saga` and `state`: sagas that have ended; those that were not registered here are `other` |
//! | `redrive_saga_stuck` | gauge: sagas that wait for a person, from one node of the cluster |
//! | `redrive_saga_batch` | histogram: sagas of one write |
//! | `redrive_notices_sent`, `redrive_notices_failed`, `redrive_reminders_sent` | counters by `channel`: messages to people |
//!
//! A recorder forgets no label, and whoever enqueues and starts chooses the names: so only names that somebody registered are labels.
//!
//! An attempt runs in the span `attempt` (level DEBUG: task, method, attempt, node), so what a handler logs says which task
//! it was for. It is at that level because a span costs more than all else that a plain attempt does here.

use metrics::{Counter, Histogram, counter, histogram};

use crate::id::NameMap;
use crate::settle::To;
use crate::store::{Settle, Settled};
use crate::task::Task;

use super::events::Listeners;
use super::history::Tally;

/// The label of all that nobody here has registered.
pub(super) const OTHER: &str = "other";

/// A transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Enqueued,
    Claimed,
    Started,
    Done,
    Failed,
    Postponed,
    Cancelled,
    Dead,
    Rescued,
    /// The task was not ours any more when its outcome was to be written.
    Lost,
}

impl Signal {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Enqueued, "redrive_enqueued"),
        (Self::Claimed, "redrive_claimed"),
        (Self::Started, "redrive_started"),
        (Self::Done, "redrive_done"),
        (Self::Failed, "redrive_failed"),
        (Self::Postponed, "redrive_postponed"),
        (Self::Cancelled, "redrive_cancelled"),
        (Self::Dead, "redrive_dead"),
        (Self::Rescued, "redrive_rescued"),
        (Self::Lost, "redrive_lost"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.get(self as usize).map_or("redrive_unknown", |(_, name)| name)
    }

    /// What a settle did, in one word.
    pub(super) fn of(settle: &Settle, settled: Settled) -> Self {
        match settled {
            Settled::Lost => Self::Lost,
            Settled::Went(To::Done) => Self::Done,
            Settled::Went(To::Pending { .. }) if settle.change.attempts > settle.task.attempts => Self::Failed,
            Settled::Went(To::Pending { .. }) => Self::Postponed,
            Settled::Went(To::Cancelled) => Self::Cancelled,
            Settled::Went(To::Dead(_) | To::Dropped(_)) => Self::Dead,
        }
    }
}

/// The counters of all methods that this node handles, looked up once.
#[derive(Debug, Default)]
pub(super) struct Signals {
    methods: NameMap<Method>,
    pub(super) listeners: Listeners,
    pub(super) tally: Tally,
}

struct Method {
    counters: [Counter; Signal::ALL.len()],
    lag: Histogram,
    took: Histogram,
}

impl std::fmt::Debug for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Method")
    }
}

impl Method {
    fn new(method: &str) -> Self {
        let named = |name: &'static str| counter!(name, "method" => method.to_owned());
        Self {
            counters: Signal::ALL.map(|(_, name)| named(name)),
            lag: histogram!("redrive_start_lag_seconds", "method" => method.to_owned()),
            took: histogram!("redrive_attempt_seconds", "method" => method.to_owned()),
        }
    }
}

impl Signals {
    pub(super) fn new<'a>(methods: impl Iterator<Item = &'a String>) -> Self {
        let methods = methods.map(|method| (method.clone(), Method::new(method))).collect();
        Self { methods, listeners: Listeners::default(), tally: Tally::default() }
    }

    /// Tells of one transition.
    pub(super) fn tell(&self, signal: Signal, task: &Task) {
        tracing::debug!(task = %task.id, method = %task.method, version = task.version, "{signal:?}");
        self.listeners.of_task(signal.name().trim_start_matches("redrive_"), task);
        match self.methods.get(&task.method).and_then(|method| method.counters.get(signal as usize)) {
            Some(counter) => counter.increment(1),
            None => counter!(signal.name(), "method" => OTHER).increment(1),
        }
    }

    pub(super) fn started(&self, task: &Task, lag: std::time::Duration) {
        self.tell(Signal::Started, task);
        self.methods.get(&task.method).iter().for_each(|m| m.lag.record(lag.as_secs_f64()));
    }

    pub(super) fn ended(&self, task: &Task, took: std::time::Duration) {
        self.methods.get(&task.method).iter().for_each(|m| m.took.record(took.as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_has_its_own_counter() {
        for (i, (signal, name)) in Signal::ALL.iter().enumerate() {
            assert_eq!(*signal as usize, i);
            assert_eq!(*name, format!("redrive_{signal:?}").to_lowercase());
        }
    }
}
