//! One retry of one row: claim it, check, handle, check again, write down what came of it.
//!
//! *State.* The claim is the value that `err_next_retry_time` was moved to.
//!
//! *Invariants.* The claim is taken before the handler is run and lasts longer than its three steps may take together; a
//! claim whose answer came so late that this might not hold is not used. What is written at the end is written only if the
//! claim is still there; but for a success, which is also written to a row that was promoted meanwhile.
//!
//! *Failure.* If the process dies, or cannot write what came of it, the claim runs out and the row is due again. A handler
//! that blocks its thread cannot be stopped in time: handlers must be async in earnest.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

use crate::engine::panicked;
use crate::error::Result;
use crate::store::db::Row;
use crate::store::pool::Use;
use crate::store::retry::{Scope, retrying};

use super::config::Guard;
use super::handler::Answer;
use super::sql::{Condition, Seconds, Sql};
use super::table::{GuardedTable, whole};
use super::value::RowId;

/// How long a claim outlasts the handler: the answer to the claim and the writing of the result fit in.
const MARGIN: Seconds = 10;
/// How late the answer to a claim may come.
const LATEST: Seconds = 5;

impl Guard {
    /// How long a row is claimed for: check, handle, check.
    pub(super) fn claim_time(&self) -> Seconds {
        whole(self.handle_timeout).saturating_mul(3).saturating_add(MARGIN)
    }
}

/// A row that is to be retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: RowId,
    pub(super) retry_count: i64,
    pub(super) start: Option<Seconds>,
    pub(super) min_interval: Option<i64>,
    pub(super) timeout: Option<i64>,
}

impl Found {
    pub(super) fn columns(sql: &Sql) -> String {
        let start = sql.epoch("err_start_time");
        format!("{}, COALESCE(err_retry_count, 0), {start}, err_min_interval, err_timeout", sql.id_text())
    }

    pub(super) fn read(sql: &Sql, row: &Row) -> sqlx::Result<Self> {
        let mut c = row.columns();
        Ok(Self {
            id: sql.read_id(&mut c)?,
            retry_count: c.int()?,
            start: c.opt_int()?,
            min_interval: c.opt_int()?,
            timeout: c.opt_int()?,
        })
    }
}

/// What becomes of a row whose retry has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is retried again, at this time.
    Again { count: i64, at: Seconds },
    /// A person has to look at it.
    Manual { count: i64 },
}

/// Source 5, §7.6. The row's own interval and timeout win over the guard's.
pub(super) fn after_failure(row: &Found, guard: &Guard, now: Seconds) -> Next {
    let count = row.retry_count.saturating_add(1);
    let timeout = row.timeout.unwrap_or_else(|| whole(guard.timeout));
    let timed_out = row.start.is_some_and(|start| now.saturating_sub(start) >= timeout);
    if timed_out || count >= i64::from(guard.max_retry_count) {
        return Next::Manual { count };
    }
    // An interval of nothing would make it due within this poll.
    let interval = row.min_interval.unwrap_or_else(|| whole(guard.min_interval)).max(1);
    Next::Again { count, at: now.saturating_add(interval.saturating_mul(count)) }
}

/// How a retry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It could not be claimed: someone else has it, or it changed, or it is gone.
    NotClaimed,
    /// The claim was answered too late to be used.
    Late,
    /// It was put right.
    Succeeded,
    /// It will be retried.
    Again,
    /// It is a person's now.
    Manual,
    /// It was run, but the row is not ours any more: nothing was written.
    Overtaken,
}

impl GuardedTable {
    pub(super) async fn attempt(self, row: Found) -> Result<Ended> {
        let now = self.seconds();
        let until = now.saturating_add(self.0.guard.claim_time());
        if !self.claim(&row, now, until).await? {
            return Ok(Ended::NotClaimed);
        }
        if self.seconds().saturating_sub(now) > LATEST {
            return Ok(Ended::Late);
        }
        if self.run(&row.id).await { self.succeed(&row.id, until).await } else { self.fail(&row, until).await }
    }

    /// Checks again all that made it due, and moves its time ahead.
    async fn claim(&self, row: &Found, now: Seconds, until: Seconds) -> Result<bool> {
        let sql = &self.0.sql;
        let set = Condition::new(format!("err_next_retry_time = {}", sql.at("?"))).with(sql.time(until));
        let same = Condition::new("err_start_time IS NOT NULL AND COALESCE(err_retry_count, 0) = ?");
        let due = sql.due(now)?.then(" AND ", same.with(row.retry_count.into()));
        Ok(self.change(&row.id, &set, &due, "claiming").await? > 0)
    }

    /// Changes the row if the condition holds; how many rows that were.
    async fn change(&self, id: &RowId, set: &Condition, condition: &Condition, doing: &str) -> Result<u64> {
        let doing = format!("{doing} row {id} of {}", self.table_name());
        retrying!(self.0.db.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
            c.execute(self.0.sql.update(set, id, condition)).await
        })
    }

    /// Check, handle, check again: whether the business has succeeded.
    async fn run(&self, id: &RowId) -> bool {
        let handler = &self.0.handler;
        match self.step(id, "check_status", handler.check_status(id)).await {
            None => return false,
            Some(true) => return true,
            Some(false) => {}
        }
        self.step(id, "handle", handler.handle(id)).await;
        self.step(id, "check_status", handler.check_status(id)).await == Some(true)
    }

    /// Runs one step; `None` if it failed, panicked or took too long.
    async fn step(&self, id: &RowId, what: &str, answer: Answer<'_, bool>) -> Option<bool> {
        let limit = self.0.guard.handle_timeout;
        let why = match tokio::time::timeout(limit, AssertUnwindSafe(answer).catch_unwind()).await {
            Ok(Ok(Ok(answer))) => return Some(answer),
            Ok(Ok(Err(e))) => e.to_string(),
            Ok(Err(panic)) => panicked(&*panic),
            Err(_) => format!("no answer within {}", humantime::format_duration(limit)),
        };
        tracing::warn!(guard = self.service_name(), row = %id, "{what}: {why}");
        None
    }

    /// Source 5: RetrySuccessful.
    async fn succeed(&self, id: &RowId, until: Seconds) -> Result<Ended> {
        let sql = &self.0.sql;
        let set = Condition::new("err_status = 2001, err_next_retry_time = NULL").then(", ", sql.succeed_if_failed()?);
        let or_promoted = self.ours(until).then(" OR ", Condition::new("err_status = 4001"));
        self.ended(self.change(id, &set, &or_promoted, "closing").await?, Ended::Succeeded)
    }

    /// Source 5: RetryFailed.
    async fn fail(&self, row: &Found, until: Seconds) -> Result<Ended> {
        let sql = &self.0.sql;
        let (set, ended) = match after_failure(row, &self.0.guard, self.seconds()) {
            Next::Again { count, at } => {
                let set = format!("err_retry_count = ?, err_next_retry_time = {}", sql.at("?"));
                (Condition::new(set).with(count.into()).with(sql.time(at)), Ended::Again)
            }
            Next::Manual { count } => {
                let set = "err_status = 4001, err_retry_count = ?, err_next_retry_time = NULL, \
                           err_next_remind_staff_time = NULL";
                (Condition::new(set).with(count.into()), Ended::Manual)
            }
        };
        self.ended(self.change(&row.id, &set, &self.ours(until), "putting off").await?, ended)
    }

    /// The fence: still abnormal, and claimed by us.
    fn ours(&self, until: Seconds) -> Condition {
        let sql = &self.0.sql;
        let condition = format!("err_status = 4000 AND err_next_retry_time = {}", sql.at("?"));
        Condition::new(condition).with(sql.time(until))
    }

    fn ended(&self, changed: u64, ended: Ended) -> Result<Ended> {
        if changed == 0 {
            return Ok(Ended::Overtaken);
        }
        match ended {
            Ended::Succeeded => self.count_change(super::err_status::AUTO_SUCCESS, 1),
            Ended::Manual => self.count_change(super::err_status::MANUAL, 1),
            _ => {}
        }
        Ok(ended)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn guard() -> Guard {
        Guard::table("t").min_interval(Duration::from_secs(5)).timeout(Duration::from_secs(180)).max_retry_count(3)
    }

    fn row(retry_count: i64) -> Found {
        Found { id: 1.into(), retry_count, start: Some(1000), min_interval: None, timeout: None }
    }

    #[test]
    fn the_interval_grows_with_the_count() {
        assert_eq!(after_failure(&row(0), &guard(), 1010), Next::Again { count: 1, at: 1015 });
        assert_eq!(after_failure(&row(1), &guard(), 1010), Next::Again { count: 2, at: 1020 });
        assert_eq!(after_failure(&row(2), &guard(), 1010), Next::Manual { count: 3 });
    }

    #[test]
    fn time_is_used_up_when_the_timeout_is_reached() {
        assert_eq!(after_failure(&row(0), &guard(), 1179), Next::Again { count: 1, at: 1184 });
        assert_eq!(after_failure(&row(0), &guard(), 1180), Next::Manual { count: 1 });
    }

    #[test]
    fn the_rows_own_values_win() {
        let own = Found { min_interval: Some(7), timeout: Some(20), ..row(1) };
        assert_eq!(after_failure(&own, &guard(), 1019), Next::Again { count: 2, at: 1033 });
        assert_eq!(after_failure(&own, &guard(), 1020), Next::Manual { count: 2 });
        let none = Found { min_interval: Some(0), ..row(0) };
        assert_eq!(after_failure(&none, &guard(), 1000), Next::Again { count: 1, at: 1001 });
        let huge = Found { min_interval: Some(i64::MAX), ..row(1) };
        assert_eq!(after_failure(&huge, &guard(), 1000), Next::Again { count: 2, at: i64::MAX });
    }
}
