//! How much there is: counts that stay cheap however many rows there are.
//!
//! A count is exact up to [`MOST_EXACT`] rows. Beyond, nobody needs the last digit, and finding it would read every row: then
//! it is what the database's statistics say, or, where there are none (SQLite, or one method among many), the least that it
//! can be. Each count says which of these it is.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::Add;

use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::SHARDS;
use crate::settle::DeadReason;
use crate::task::Lane;

use super::Store;
use super::db::{Connection, Dialect, Row, query};
use super::hot::{Slice, Wanted, read_slices};
use super::method::{LaneDepth, depths};
use super::pool::Use;
use super::retry::{Scope, retrying};

/// Up to here counts are exact.
pub const MOST_EXACT: u64 = 100_000;

/// A number of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// How many.
    pub n: u64,
    /// How sure that is.
    pub exactness: Exactness,
}

/// How sure a count is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exactness {
    /// They were counted.
    #[default]
    Exact,
    /// So many were counted, and there are more.
    AtLeast,
    /// What the statistics of the database say.
    Estimate,
}

/// What there is of one method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MethodCount {
    /// Its name.
    pub method: String,
    /// Tasks that wait or run.
    pub tasks: Count,
    /// Dead letters.
    pub dead: Count,
    /// When the first of those that wait is due.
    pub oldest_due: Option<Timestamp>,
    /// Whether people have paused it.
    pub paused: bool,
}

/// Everything at one look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Overview {
    /// Tasks that wait.
    pub pending: Count,
    /// Tasks that run.
    pub running: Count,
    /// When the oldest attempt that still runs was begun. If there are too many tasks to count, of those that were looked at.
    pub oldest_running: Option<Timestamp>,
    /// Dead letters.
    pub dead: Count,
    /// The same by reason; reasons that there are.
    pub dead_by_reason: Vec<(DeadReason, Count)>,
    /// By method, those with the most tasks first.
    pub methods: Vec<MethodCount>,
    /// What has ended and is kept.
    pub archived: Count,
}

impl Count {
    fn exact(n: u64) -> Self {
        Self { n, exactness: Exactness::Exact }
    }

    /// What was counted up to a bound.
    pub(super) fn up_to(most: u64, n: u64) -> Self {
        let exactness = if n >= most { Exactness::AtLeast } else { Exactness::Exact };
        Self { n, exactness }
    }

    /// Whether there may be more, or fewer.
    pub fn is_estimate(self) -> bool {
        self.exactness != Exactness::Exact
    }

    /// Without some of them. What is at least so many stays that, however sure the others are.
    fn less(self, other: Self) -> Self {
        let exactness = if self.is_estimate() { self.exactness } else { other.exactness };
        Self { n: self.n.saturating_sub(other.n), exactness }
    }
}

/// Tasks that run, and since when the first of them does.
#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    count: Count,
    oldest: Option<Timestamp>,
}

impl Runs {
    fn and(self, other: Self) -> Self {
        let oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        Self { count: self.count + other.count, oldest }
    }
}

impl Add for Count {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { n: self.n.saturating_add(other.n), exactness: self.exactness.max(other.exactness) }
    }
}

impl Store {
    /// What there is, for a dashboard. It reads at most [`MOST_EXACT`] rows of each table, method and reason, by an index.
    pub async fn overview(&self) -> Result<Overview> {
        let (tasks, run) = self.count_tasks().await?;
        let (dead, dead_by_reason) = self.count_dead().await?;
        Ok(Overview {
            pending: tasks.less(run.count),
            running: run.count,
            oldest_running: run.oldest,
            dead,
            dead_by_reason,
            methods: self.count_methods(tasks).await?,
            archived: self.count_archived().await?,
        })
    }

    /// All tasks, and those of them that run.
    async fn count_tasks(&self) -> Result<(Count, Runs)> {
        let (mut all, mut runs) = (Count::default(), Runs::default());
        for table in self.tables().all() {
            let counted = retrying!(self.pools(), Use::Read, Scope::Statement, "counting tasks", |c, _| {
                let here = total(c, table).await?;
                if here.is_estimate() {
                    return Ok((here, None));
                }
                let sql = format!("SELECT COUNT(*), MIN(locked_at) FROM {table} WHERE status = 1");
                let row = c.row(query(sql)).await?.ok_or(sqlx::Error::RowNotFound)?;
                let mut columns = row.columns();
                let count = Count::exact(columns.int()?.unsigned_abs());
                Ok((here, Some(Runs { count, oldest: columns.opt_int()?.map(Timestamp::from_millis) })))
            });
            let (here, found) = self.learn_from(counted).await?;
            all = all + here;
            runs =
                runs.and(found.unwrap_or(Runs { count: Count { n: 0, exactness: Exactness::Estimate }, oldest: None }));
        }
        match runs.count.is_estimate() {
            true => Ok((all, self.count_running().await?)),
            false => Ok((all, runs)),
        }
    }

    /// Running tasks stand at the head of what is due in their lane and shard, so that is where they are looked for.
    async fn count_running(&self) -> Result<Runs> {
        let wanted = Wanted::AtHead("x.status = 1", Vec::new());
        let mut runs = Runs::default();
        for lane in self.count_lanes().await? {
            for (table, slices) in self.tables().reading(&all_shards(lane.lane)) {
                let found = retrying!(self.pools(), Use::Read, Scope::Statement, "counting running tasks", |c, _| {
                    let since = |row: &Row| row.columns().opt_int();
                    let found =
                        read_slices(c, table, &slices, "t.locked_at", &wanted, Timestamp::MAX, 256, since).await?;
                    let oldest = found.iter().flatten().min().map(|since| Timestamp::from_millis(*since));
                    Ok(Runs { count: Count::exact(found.len() as u64), oldest })
                });
                runs = runs.and(self.learn_from(found).await?);
            }
        }
        runs.count.exactness = Exactness::Estimate;
        Ok(runs)
    }

    /// All dead letters, and those of each reason that there are.
    pub(crate) async fn count_dead(&self) -> Result<(Count, Vec<(DeadReason, Count)>)> {
        retrying!(self.pools(), Use::Read, Scope::Statement, "counting dead letters", |c, _| {
            let mut by_reason = Vec::new();
            for reason in DeadReason::ALL {
                let sql = "SELECT COUNT(*) FROM (SELECT 1 AS n FROM retry_dead WHERE dead_reason = ? LIMIT ?) x";
                let count = query(sql).bind(reason.as_str()).bind(MOST_EXACT.cast_signed());
                let n = c.row(count).await?.map(|row| row.int()).transpose()?.unwrap_or(0).unsigned_abs();
                if n > 0 {
                    by_reason.push((reason, Count::up_to(MOST_EXACT, n)));
                }
            }
            let mut all = by_reason.iter().fold(Count::default(), |all, (_, count)| all + *count);
            if all.is_estimate() {
                all = estimate(c, "retry_dead", all).await?;
            }
            Ok((all, by_reason))
        })
    }

    async fn count_archived(&self) -> Result<Count> {
        let mut all = Count::default();
        for archive in self.tables().all_archives() {
            let counted =
                retrying!(self.pools(), Use::Read, Scope::Statement, "counting the archive", |c, _| total(c, archive)
                    .await);
            all = all + self.learn_from(counted).await?;
        }
        Ok(all)
    }

    async fn count_methods(&self, tasks: Count) -> Result<Vec<MethodCount>> {
        let paused = self.paused().await?;
        let live = self.count_lanes().await?;
        let mut dead = Vec::new();
        let counted = retrying!(self.pools(), Use::Read, Scope::Statement, "counting dead letters", |c, _| {
            depths(c, "retry_dead", MOST_EXACT).await
        })?;
        add_up(&mut dead, counted);
        let names: BTreeSet<&str> = live.iter().chain(&dead).map(|in_it| &*in_it.method).collect();
        let mut methods = Vec::with_capacity(names.len());
        for method in names {
            let slices: Vec<Slice> =
                live.iter().filter(|in_it| in_it.method == method).flat_map(|in_it| all_shards(in_it.lane)).collect();
            let first = self.scan(&slices, Timestamp::MAX, 1).await?;
            methods.push(MethodCount {
                tasks: count_of(&live, method),
                dead: count_of(&dead, method),
                oldest_due: first.iter().map(|due| due.due).min(),
                paused: paused.iter().any(|p| p.method == method),
                method: method.to_owned(),
            });
        }
        share_out(&mut methods, tasks);
        methods.sort_by_key(|m| std::cmp::Reverse((m.tasks.n, m.dead.n)));
        Ok(methods)
    }

    /// The lanes that have tasks, counted up to [`MOST_EXACT`] in each table.
    async fn count_lanes(&self) -> Result<Vec<InLane>> {
        let mut lanes = Vec::new();
        for table in self.tables().read() {
            let counted = retrying!(self.pools(), Use::Read, Scope::Statement, "counting tasks", |c, _| {
                depths(c, table, MOST_EXACT).await
            });
            add_up(&mut lanes, self.learn_from(counted).await?);
        }
        Ok(lanes)
    }
}

/// What there is in a lane.
struct InLane {
    lane: Lane,
    method: String,
    count: Count,
}

/// The lanes of another table beside those that are known.
fn add_up(lanes: &mut Vec<InLane>, more: Vec<LaneDepth>) {
    for found in more {
        let count = Count::up_to(MOST_EXACT, found.depth);
        match lanes.iter_mut().find(|lane| lane.lane == found.lane) {
            Some(lane) => lane.count = lane.count + count,
            None => lanes.push(InLane { lane: found.lane, method: found.method, count }),
        }
    }
}

pub(super) fn all_shards(lane: Lane) -> Vec<Slice> {
    (0..SHARDS).map(|shard| Slice { lane, shard, from: Timestamp::EPOCH }).collect()
}

/// Of a method, in all of its lanes.
fn count_of(lanes: &[InLane], method: &str) -> Count {
    let of = lanes.iter().filter(|in_it| in_it.method == method);
    of.fold(Count::default(), |all, in_it| all + in_it.count)
}

/// If there is one method only that was not counted to its end, it has all that the others have not.
fn share_out(methods: &mut [MethodCount], tasks: Count) {
    let (open, counted): (Vec<_>, Vec<_>) = methods.iter_mut().partition(|m| m.tasks.is_estimate());
    let known = counted.iter().fold(Count::default(), |sum, m| sum + m.tasks);
    if let [one] = open.into_iter().collect::<Vec<_>>().as_mut_slice()
        && tasks.exactness == Exactness::Estimate
        && tasks.n.saturating_sub(known.n) > one.tasks.n
    {
        one.tasks = tasks.less(known);
    }
}

async fn number(c: &mut Connection<'_>, sql: String) -> sqlx::Result<u64> {
    Ok(c.row(query(sql))
        .await?
        .map(|row| row.columns().opt_int())
        .transpose()?
        .flatten()
        .unwrap_or(0)
        .max(0)
        .unsigned_abs())
}

/// The rows of a table.
async fn total(c: &mut Connection<'_>, table: impl Display + Copy) -> sqlx::Result<Count> {
    let sql = format!("SELECT COUNT(*) FROM (SELECT 1 AS n FROM {table} LIMIT {MOST_EXACT}) x");
    let counted = Count::up_to(MOST_EXACT, number(c, sql).await?);
    if counted.is_estimate() { estimate(c, table, counted).await } else { Ok(counted) }
}

/// What the statistics say, if that is more than was counted.
async fn estimate(c: &mut Connection<'_>, table: impl Display, counted: Count) -> sqlx::Result<Count> {
    let sql = match c.dialect() {
        Dialect::Sqlite => return Ok(counted), // it has none, unless someone asks for them
        // As its planner does: so many rows a page when it last looked, and the pages that there are now.
        Dialect::Postgres => format!(
            "SELECT CASE WHEN relpages > 0 AND reltuples > 0 THEN (reltuples / relpages \
             * (pg_relation_size(oid) / current_setting('block_size')::int8))::int8 ELSE 0 END \
             FROM pg_class WHERE oid = to_regclass('{table}')"
        ),
        Dialect::MySql => format!(
            "SELECT CAST(table_rows AS SIGNED) FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name = '{table}'"
        ),
    };
    let n = number(c, sql).await?;
    Ok(if n > counted.n { Count { n, exactness: Exactness::Estimate } } else { counted })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(name: &str, n: u64) -> MethodCount {
        let tasks = Count::up_to(MOST_EXACT, n);
        MethodCount { method: name.into(), tasks, dead: Count::default(), oldest_due: None, paused: false }
    }

    #[test]
    fn what_is_not_known_of_one_method_follows_from_the_others() {
        let all = Count { n: 5_000_000, exactness: Exactness::Estimate };
        let mut methods = [method("few", 10), method("many", MOST_EXACT)];
        share_out(&mut methods, all);
        assert_eq!(methods[0].tasks, Count::exact(10));
        assert_eq!(methods[1].tasks, Count { n: 4_999_990, exactness: Exactness::Estimate });
        let mut two = [method("many", MOST_EXACT), method("more", MOST_EXACT)];
        share_out(&mut two, all);
        assert_eq!(two[0].tasks, Count { n: MOST_EXACT, exactness: Exactness::AtLeast });
    }
}
