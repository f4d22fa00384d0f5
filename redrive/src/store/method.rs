//! Methods: which ones people have paused, and how much of each waits.
//!
//! A pause is a row of `redrive_setting` (`pause/` and the lane's number), which every node reads as often as it beats. Who
//! pauses and resumes is noted in `redrive_audit` in the same transaction.

use std::fmt::Display;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::task::Lane;

use super::Store;
use super::audit::AuditEntry;
use super::count::all_shards;
use super::db::{Connection, Dialect, query};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::narrow;

/// A method that people have paused: its tasks wait.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Paused {
    /// Its name.
    pub method: String,
    /// Since when.
    pub since: Timestamp,
    /// By whom, if they said.
    pub by: Option<String>,
}

/// What waits and runs in a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneDepth {
    /// The lane.
    pub lane: Lane,
    /// The method of its first task.
    pub method: String,
    /// How many tasks there are, at most [`MOST_COUNTED`].
    pub depth: u64,
    /// When the first of those that wait is due.
    pub oldest_due: Option<Timestamp>,
}

/// Counting stops here: a gauge must not cost as much as the work.
pub const MOST_COUNTED: u64 = 1_000_000;

impl Store {
    /// Holds a method's tasks back, on all nodes, until it is resumed. What runs goes on. `false`: it was paused already.
    pub async fn pause(&self, method: &str, by: Option<&str>, now: Timestamp) -> Result<bool> {
        let sql = match self.dialect() {
            Dialect::MySql => {
                "INSERT IGNORE INTO redrive_setting (name, version, updated_at, updated_by, value) VALUES (?, 1, ?, ?, ?)"
            }
            _ => {
                "INSERT INTO redrive_setting (name, version, updated_at, updated_by, value) VALUES (?, 1, ?, ?, ?) \
                 ON CONFLICT (name) DO NOTHING"
            }
        };
        let paused = query(sql).bind(setting(method)).bind(now).bind(by).bind(method);
        self.set_pause("pause", method, by, paused, now).await
    }

    /// Lets a method's tasks run again. `false`: it was not paused.
    pub async fn resume(&self, method: &str, by: Option<&str>, now: Timestamp) -> Result<bool> {
        let resumed = query("DELETE FROM redrive_setting WHERE name = ?").bind(setting(method));
        self.set_pause("resume", method, by, resumed, now).await
    }

    async fn set_pause(
        &self,
        action: &str,
        method: &str,
        by: Option<&str>,
        change: super::db::Query<'_>,
        now: Timestamp,
    ) -> Result<bool> {
        let entry = AuditEntry::new(by.unwrap_or("unknown"), &format!("method.{action}"), method);
        let record = self.record(entry, now);
        retrying!(
            self.pools(),
            Use::Write,
            Scope::Transaction,
            &format!("{action} of the method {method}"),
            |c, tried| {
                if c.execute(change.clone()).await? == 0 {
                    return Ok(tried > 0); // our earlier try, whose answer was lost
                }
                record.write(c, now).await?;
                Ok(true)
            }
        )
    }

    /// The methods that are paused, by name.
    pub async fn paused(&self) -> Result<Vec<Paused>> {
        let sql = "SELECT value, updated_at, updated_by FROM redrive_setting WHERE name LIKE 'pause/%' ORDER BY value";
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading which methods are paused", |c, _| {
            let rows = c.rows(query(sql)).await?;
            let paused = rows.iter().map(|row| {
                let mut c = row.columns();
                let (method, since) = (c.text()?.to_owned(), Timestamp::from_millis(c.int()?));
                Ok(Paused { method, since, by: c.opt_text()?.map(str::to_owned) })
            });
            paused.collect()
        })
    }

    /// What there is in each lane that has tasks.
    pub async fn depths(&self) -> Result<Vec<LaneDepth>> {
        let mut lanes: Vec<LaneDepth> = Vec::new();
        for table in self.tables().read() {
            let counted = retrying!(self.pools(), Use::Read, Scope::Statement, "counting tasks", |c, _| {
                depths(c, table, MOST_COUNTED).await
            });
            for found in self.learn_from(counted).await? {
                match lanes.iter_mut().find(|lane| lane.lane == found.lane) {
                    Some(lane) => lane.depth += found.depth,
                    None => lanes.push(found),
                }
            }
        }
        for lane in &mut lanes {
            lane.oldest_due = self.oldest_due(lane.lane).await?;
        }
        Ok(lanes)
    }

    /// When the first of what waits in a lane is due.
    pub(super) async fn oldest_due(&self, lane: Lane) -> Result<Option<Timestamp>> {
        let first = self.scan(&all_shards(lane), Timestamp::MAX, 1).await?;
        Ok(first.iter().map(|due| due.due).min())
    }
}

fn setting(method: &str) -> String {
    format!("pause/{}", Lane::of(method).0)
}

/// From lane to lane by the index, without looking at what is between; then each is counted, up to a point. (One recursive
/// statement would do as well, were it not that MariaDB then walks the whole index for each lane.)
pub(super) async fn depths(c: &mut Connection<'_>, table: impl Display, most: u64) -> sqlx::Result<Vec<LaneDepth>> {
    let next = format!("SELECT MIN(lane) FROM {table} WHERE lane > ?");
    let (mut depths, mut last) = (Vec::new(), Lane(-1)); // lanes are not negative
    while let Some(row) = c.row(query(next.clone()).bind(last)).await? {
        let Some(lane) = row.columns().opt_int()? else { break };
        let lane = Lane(narrow(lane)?);
        last = lane;
        let count = format!("SELECT COUNT(*) FROM (SELECT 1 AS n FROM {table} WHERE lane = ? LIMIT ?) x");
        let count = c.row(query(count).bind(lane).bind(most.cast_signed())).await?;
        let method = format!("SELECT method_name FROM {table} WHERE lane = ? LIMIT 1");
        let Some(method) = c.row(query(method).bind(lane)).await? else { continue };
        let depth = count.map(|row| row.int()).transpose()?.unwrap_or(0);
        let method = method.columns().text()?.to_owned();
        depths.push(LaneDepth { lane, method, depth: depth.unsigned_abs(), oldest_due: None });
    }
    Ok(depths)
}
