//! Methods: which ones people have paused, and how much of each waits.
//!
//! A pause is a row of `redrive_setting` (`pause/` and the lane's number), which every node reads as often as it beats. Who
//! pauses and resumes is noted in `redrive_audit` in the same transaction.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::task::Lane;

use super::Store;
use super::audit::AuditEntry;
use super::count::all_shards;
use super::db::{Connection, Dialect, Row, query};
use super::hot::Slice;
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

/// How many tasks there are in a lane.
pub(super) struct LaneDepth {
    pub(super) lane: Lane,
    /// Of its first task.
    pub(super) method: String,
    pub(super) depth: u64,
}

/// What waits and runs of a method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodDepth {
    /// Its name.
    pub method: String,
    /// How many tasks there are, at most [`MOST_COUNTED`] of each table and part.
    pub depth: u64,
    /// When the first of those that wait is due.
    pub oldest_due: Option<Timestamp>,
}

/// Counting stops here: a gauge must not cost as much as the work.
pub const MOST_COUNTED: u64 = 1_000_000;

/// Of a row's name, value, time and person.
pub(super) fn read_paused(row: &Row) -> sqlx::Result<Paused> {
    let mut c = row.columns();
    _ = c.text()?; // the lane's number: the value is the method's name
    let (method, since) = (c.text()?.to_owned(), Timestamp::from_millis(c.int()?));
    Ok(Paused { method, since, by: c.opt_text()?.map(str::to_owned) })
}

impl Store {
    /// Holds a method's tasks back, on all nodes, until it is resumed. What runs goes on. `false`: it was paused already.
    pub async fn pause(&self, method: &str, by: Option<&str>, now: Timestamp) -> Result<bool> {
        self.pause_noting(method, by, None, now).await
    }

    /// The same; what they said about it is in the audit.
    pub(super) async fn pause_noting(
        &self,
        method: &str,
        by: Option<&str>,
        note: Option<&str>,
        now: Timestamp,
    ) -> Result<bool> {
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
        self.set_pause(AuditEntry::new(by.unwrap_or("unknown"), "method.pause", method).noting(note), paused, now).await
    }

    /// Lets a method's tasks run again. `false`: it was not paused.
    pub async fn resume(&self, method: &str, by: Option<&str>, now: Timestamp) -> Result<bool> {
        self.resume_noting(method, by, None, now).await
    }

    /// The same; what they said about it is in the audit.
    pub(super) async fn resume_noting(
        &self,
        method: &str,
        by: Option<&str>,
        note: Option<&str>,
        now: Timestamp,
    ) -> Result<bool> {
        let resumed = query("DELETE FROM redrive_setting WHERE name = ?").bind(setting(method));
        self.set_pause(AuditEntry::new(by.unwrap_or("unknown"), "method.resume", method).noting(note), resumed, now)
            .await
    }

    async fn set_pause(&self, entry: AuditEntry, change: super::db::Query<'_>, now: Timestamp) -> Result<bool> {
        let doing = format!("{} {}", entry.action, entry.target);
        let record = self.record(entry, now);
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, tried| {
            if c.execute(change.clone()).await? == 0 {
                return Ok(tried > 0); // our earlier try, whose answer was lost
            }
            record.write(c, now).await?;
            Ok(true)
        })
    }

    /// The methods that are paused, by name.
    pub async fn paused(&self) -> Result<Vec<Paused>> {
        let sql =
            "SELECT name, value, updated_at, updated_by FROM redrive_setting WHERE name LIKE 'pause/%' ORDER BY value";
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading which methods are paused", |c, _| {
            let rows = c.rows(query(sql)).await?;
            rows.iter().map(read_paused).collect()
        })
    }

    /// The lanes between these two in which there are tasks.
    pub(crate) async fn lanes(&self, between: &RangeInclusive<Lane>) -> Result<Vec<Lane>> {
        let mut lanes = Vec::new();
        for table in self.tables().read() {
            let found = retrying!(self.pools(), Use::Read, Scope::Statement, "looking for lanes", |c, _| lanes_in(
                c, table, between
            )
            .await);
            lanes.extend(self.learn_from(found).await?);
        }
        Ok(lanes)
    }

    /// What there is of each method that has tasks, by name.
    pub async fn depths(&self) -> Result<Vec<MethodDepth>> {
        let (mut methods, mut lanes) = (BTreeMap::new(), BTreeMap::new());
        for table in self.tables().read() {
            let counted = retrying!(self.pools(), Use::Read, Scope::Statement, "counting tasks", |c, _| {
                depths(c, table, MOST_COUNTED).await
            });
            for LaneDepth { lane, method, depth } in self.learn_from(counted).await? {
                let none = MethodDepth { method: method.clone(), depth: 0, oldest_due: None };
                methods.entry(method.clone()).or_insert(none).depth += depth;
                lanes.insert(lane, method);
            }
        }
        let slices: Vec<Slice> = lanes.keys().flat_map(|lane| all_shards(*lane)).collect();
        for due in self.scan(&slices, Timestamp::MAX, 1).await? {
            if let Some(depth) = lanes.get(&due.lane).and_then(|method| methods.get_mut(method)) {
                depth.oldest_due = Some(depth.oldest_due.map_or(due.due, |oldest| oldest.min(due.due)));
            }
        }
        Ok(methods.into_values().collect())
    }
}

fn setting(method: &str) -> String {
    format!("pause/{}", Lane::of(method).0)
}

/// From lane to lane by the index, without looking at what is between. One statement for each on MySQL: in a recursive one
/// MariaDB walks the whole index for each lane.
async fn lanes_in(
    c: &mut Connection<'_>,
    table: impl Display,
    between: &RangeInclusive<Lane>,
) -> sqlx::Result<Vec<Lane>> {
    let (first, last) = (*between.start(), *between.end());
    if c.dialect() == Dialect::MySql {
        let (mut lanes, mut from) = (Vec::new(), i64::from(first.0));
        let next = format!("SELECT MIN(lane) FROM {table} WHERE lane >= ? AND lane <= ?");
        while let Some(row) = c.row(query(next.clone()).bind(from).bind(last)).await? {
            let Some(lane) = row.columns().opt_int()? else { break };
            lanes.push(Lane(narrow(lane)?));
            from = lane + 1;
        }
        return Ok(lanes);
    }
    let lanes = format!(
        "WITH RECURSIVE l(lane) AS (SELECT MIN(lane) FROM {table} WHERE lane >= ? AND lane <= ? UNION ALL \
         SELECT (SELECT MIN(t.lane) FROM {table} t WHERE t.lane > l.lane AND t.lane <= ?) FROM l WHERE l.lane IS NOT NULL) \
         SELECT lane FROM l WHERE lane IS NOT NULL"
    );
    let rows = c.rows(query(lanes).bind(first).bind(last).bind(last)).await?;
    rows.iter().map(|row| Ok(Lane(narrow(row.int()?)?))).collect()
}

/// Each lane is counted, up to a point.
pub(super) async fn depths(c: &mut Connection<'_>, table: impl Display, most: u64) -> sqlx::Result<Vec<LaneDepth>> {
    let mut depths = Vec::new();
    for lane in lanes_in(c, &table, &(Lane(i32::MIN)..=Lane(i32::MAX))).await? {
        let count = format!("SELECT COUNT(*) FROM (SELECT 1 AS n FROM {table} WHERE lane = ? LIMIT ?) x");
        let count = c.row(query(count).bind(lane).bind(most.cast_signed())).await?;
        let method = format!("SELECT method_name FROM {table} WHERE lane = ? LIMIT 1");
        let Some(method) = c.row(query(method).bind(lane)).await? else { continue };
        let depth = count.map(|row| row.int()).transpose()?.unwrap_or(0);
        let method = method.columns().text()?.to_owned();
        depths.push(LaneDepth { lane, method, depth: depth.unsigned_abs() });
    }
    Ok(depths)
}
