//! What happened in each minute, for curves: `redrive_history`, a row for each minute and node.
//!
//! *Invariants.* A row has the numbers of its minute so far, not what was added: writing it again, after an answer was lost or
//! because there is more, makes it right. What is asked for is added up by the database, so an answer is as long as there are
//! points in a curve, however many nodes there are.
//!
//! *Failure.* A minute that could not be written is missing in a curve, and nowhere else.

use std::time::Duration;

use serde::Serialize;

use crate::clock::{Timestamp, millis};
use crate::error::Result;
use crate::task::NodeNumber;

use super::Store;
use super::db::{Dialect, Row, query};
use super::pool::Use;
use super::retry::{Scope, retrying};

/// How long minutes are kept.
pub(crate) const KEPT: Duration = Duration::from_secs(8 * 24 * 3600);

/// What happened in a minute, or in a longer time from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Moment {
    /// When it began.
    pub at: Timestamp,
    /// Tasks that were written down by engines.
    pub enqueued: u64,
    /// Tasks that succeeded.
    pub done: u64,
    /// Attempts that failed and will be repeated.
    pub failed: u64,
    /// Tasks that died.
    pub dead: u64,
    /// Tasks that waited or ran, at the most.
    pub waiting: Option<u64>,
    /// Dead letters, at the most.
    pub letters: Option<u64>,
    /// How long the first due task had waited, at the most.
    pub lag: Option<Duration>,
}

impl Moment {
    /// A time in which nothing happened yet.
    pub fn at(at: Timestamp) -> Self {
        Self { at, ..Self::default() }
    }
}

impl Store {
    /// Writes down what this node knows of a minute, in the place of what it knew before.
    pub async fn note_minute(&self, node: NodeNumber, minute: &Moment) -> Result<()> {
        let new = |column: &str| match self.dialect() {
            Dialect::MySql => format!("VALUES({column})"),
            Dialect::Sqlite | Dialect::Postgres => format!("excluded.{column}"),
        };
        let counts = ["enqueued", "done", "failed", "dead"].map(|c| format!("{c} = {}", new(c)));
        // Who does the upkeep may be another node in the same minute: what is not known now may have been before.
        let gauges =
            ["waiting", "letters", "lag_ms"].map(|c| format!("{c} = COALESCE({}, redrive_history.{c})", new(c)));
        let again = if self.dialect() == Dialect::MySql {
            "ON DUPLICATE KEY UPDATE"
        } else {
            "ON CONFLICT (minute, node) DO UPDATE SET"
        };
        let sql = format!(
            "INSERT INTO redrive_history (minute, node, enqueued, done, failed, dead, waiting, letters, lag_ms) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) {again} {}, {}",
            counts.join(", "),
            gauges.join(", ")
        );
        let m = minute;
        let write = query(sql).bind(m.at).bind(node.0);
        let write = [m.enqueued, m.done, m.failed, m.dead].into_iter().fold(write, |w, n| w.bind(n.cast_signed()));
        let write = write.bind(m.waiting.map(u64::cast_signed)).bind(m.letters.map(u64::cast_signed));
        let write = write.bind(m.lag.map(millis));
        retrying!(self.pools(), Use::Write, Scope::Statement, "writing what happened", |c, _| {
            c.execute(write.clone()).await.map(|_| ())
        })
    }

    /// What happened since `from`, all nodes together, in steps of this many minutes. Steps in which nothing was written down are
    /// left out.
    pub async fn history(&self, from: Timestamp, minutes: u32) -> Result<Vec<Moment>> {
        let int = if self.dialect() == Dialect::MySql { "SIGNED" } else { "BIGINT" }; // PostgreSQL adds up to NUMERIC
        let sums = ["enqueued", "done", "failed", "dead"].map(|column| format!("CAST(SUM({column}) AS {int})"));
        let sql = format!(
            "SELECT minute - minute % ?, {}, MAX(waiting), MAX(letters), MAX(lag_ms) FROM redrive_history \
             WHERE minute >= ? GROUP BY 1 ORDER BY 1",
            sums.join(", ")
        );
        let step = i64::from(minutes.max(1)) * 60_000;
        let from = Timestamp::from_millis(from.as_millis() - from.as_millis() % step);
        let read = query(sql).bind(step).bind(from);
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading what happened", |c, _| {
            c.rows(read.clone()).await?.iter().map(read_moment).collect()
        })
    }

    /// Removes minutes that are too old.
    pub(crate) async fn sweep_history(&self, now: Timestamp) -> Result<()> {
        retrying!(self.pools(), Use::Write, Scope::Statement, "removing old history", |c, _| {
            c.execute(query("DELETE FROM redrive_history WHERE minute < ?").bind(now - KEPT)).await.map(|_| ())
        })
    }
}

fn read_moment(row: &Row) -> sqlx::Result<Moment> {
    let mut c = row.columns();
    let at = Timestamp::from_millis(c.int()?);
    let [enqueued, done, failed, dead] = [c.int()?, c.int()?, c.int()?, c.int()?].map(count);
    let [waiting, letters, lag] = [c.opt_int()?, c.opt_int()?, c.opt_int()?].map(|n| n.map(count));
    Ok(Moment { at, enqueued, done, failed, dead, waiting, letters, lag: lag.map(Duration::from_millis) })
}

fn count(n: i64) -> u64 {
    n.max(0).unsigned_abs()
}
