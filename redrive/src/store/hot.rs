//! Finding what is due, and claiming it: the statements that every task pays for.
//!
//! *Invariants.* A claim is a compare-and-set on (id, version, PENDING, due) by a node that is not fenced. It touches no
//! indexed column and no column of variable width, so on PostgreSQL it is a HOT update and on MySQL it writes a tenth of
//! the redo. The owner is a number.
//!
//! *Reading.* The scan index is `(lane, shard, next_retry_time)` and is read slice by slice, each with its own limit:
//! LATERAL on PostgreSQL, a correlated list on SQLite, UNION ALL on MySQL. Asking for all slices in one ordered query would
//! sort the whole backlog. A lane that is not asked for costs nothing, however much waits in it. Where there are thousands of
//! lanes with little in each, a lane is read as a whole instead, in the order of the index: one descent, not one for each shard.
//!
//! *Failure.* If the answer to a claim is lost, the rows are ours without our knowing. Every claim of a store has a moment
//! of its own (`locked_at`, moved ahead by a millisecond if need be), so the next try finds by owner and moment just what the
//! lost one got. MySQL, which returns nothing from an UPDATE, reads the claimed rows in the same way.

use std::collections::{BTreeMap, HashMap};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{IdMap, TaskId};
use crate::settle::spent;
use crate::task::{Lane, NodeNumber, Task, business_hash};

use super::Store;
use super::claimed::{claimed_columns, read_claimed};
use super::db::{Columns, Connection, Dialect, Query, Row, Value, query};
use super::decode::{Decoder, LAST_VERSION};
use super::layout::Table;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{ALIKE, Listed, SAME, alike, joined};
use super::settle_sql::Hold;

/// A part of the scan index: one lane in one shard, from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The lane.
    pub lane: Lane,
    /// The shard.
    pub shard: u8,
    /// Rows due before this are passed over: known to be gone or taken.
    pub from: Timestamp,
}

/// A lane, and those of its shards that are meant, a bit for each.
pub type LaneShards = (Lane, u64);

/// A pending task as the scan sees it: enough to wait for it and to claim it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Which task.
    pub id: TaskId,
    /// Its version.
    pub version: i32,
    /// When it is due.
    pub due: Timestamp,
    /// Among what is due, the greater goes first.
    pub priority: i16,
    /// Its lane.
    pub lane: Lane,
    /// A hash of its business id; 0 if it has none.
    pub business: u32,
}

impl Due {
    /// A task that waits.
    pub(crate) fn of(task: &Task, version: i32, due: Timestamp) -> Self {
        let business = task.business.as_ref().map_or(0, |b| business_hash(&b.id));
        Self { id: task.id, version, due, priority: task.priority, lane: task.lane, business }
    }
}

/// The lanes of slices, with their shards.
pub(super) fn lanes_of(slices: &[Slice]) -> Vec<LaneShards> {
    let mut lanes: BTreeMap<Lane, u64> = BTreeMap::new();
    slices.iter().for_each(|s| *lanes.entry(s.lane).or_default() |= 1 << s.shard);
    lanes.into_iter().collect()
}

/// What a claim got.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// Ours, and to be run.
    pub tasks: Vec<Task>,
    /// Ours for a moment: their time had run out while they waited, or their rows cannot be decoded, so they are dead now and
    /// did not run.
    pub spent: Vec<Task>,
    /// Whether others may be ours as well: a part of the claim had no answer, or what ran out of time could not be ended.
    pub is_partial: bool,
}

impl Store {
    /// Pending tasks of these slices that are due until `until`: at most `limit` of each slice, the earliest first.
    pub async fn scan(&self, slices: &[Slice], until: Timestamp, limit: u32) -> Result<Vec<Due>> {
        self.scan_without(slices, &[], until, limit).await
    }

    /// The same, passing over these business ids.
    pub async fn scan_without(
        &self,
        slices: &[Slice],
        businesses: &[String],
        until: Timestamp,
        limit: u32,
    ) -> Result<Vec<Due>> {
        let wanted = Wanted::pending_without(businesses);
        let reading = self.tables().reading(slices);
        let mut scans = Vec::with_capacity(reading.len());
        for (table, slices) in &reading {
            scans.push(self.scan_table(*table, slices, &wanted, until, limit));
        }
        let found = self.learn_from(futures_util::future::try_join_all(scans).await).await?;
        let mut due = found.concat();
        due.sort_unstable_by_key(|d| d.due); // the slices come one after the other
        if reading.len() > 1 {
            keep_first(&mut due, limit);
        }
        Ok(due)
    }

    async fn scan_table(
        &self,
        table: Table,
        slices: &[Slice],
        wanted: &Wanted,
        until: Timestamp,
        limit: u32,
    ) -> Result<Vec<Due>> {
        let found: Vec<Result<Due, TaskId>> =
            retrying!(self.pools(), Use::Read, Scope::Statement, "scanning for due tasks", |c, _| {
                read_slices(c, table, slices, DUE, wanted, until, limit, read_due).await
            })?;
        Ok(self.without_undecodable(found).await)
    }

    /// The tasks that can be decoded. The others end: no claim can touch them.
    async fn without_undecodable(&self, found: Vec<Result<Due, TaskId>>) -> Vec<Due> {
        let bad: Vec<TaskId> = found.iter().filter_map(|found| found.err()).collect();
        if !bad.is_empty()
            && let Err(e) = self.end_undecodable(&bad).await
        {
            tracing::error!(error = %e, tasks = ?bad, "rows that cannot be decoded could not be made dead letters; trying again later");
        }
        found.into_iter().filter_map(Result::ok).collect()
    }

    /// Returns pending tasks of whole lanes that are due until `until`, for lanes with little in them: at most `limit` of each lane
    /// and table, shard by shard. A lane of which fewer came has no more.
    pub(crate) async fn scan_lanes(&self, lanes: &[LaneShards], until: Timestamp, limit: u32) -> Result<Vec<Due>> {
        let mut found = Vec::new();
        for (table, lanes) in self.tables().reading_lanes(lanes) {
            let read = retrying!(self.pools(), Use::Read, Scope::Statement, "scanning lanes for due tasks", |c, _| {
                read_lanes(c, table, &lanes, DUE, &InLane::Pending, until, limit, read_due).await
            });
            found.extend(self.without_undecodable(self.learn_from(read).await?).await);
        }
        Ok(found)
    }

    /// Makes due tasks ours: those that still are what the scan saw. What ran out of time while it waited is dead
    /// afterwards, without having run.
    pub async fn claim(&self, due: &[Due], node: NodeNumber, now: Timestamp) -> Result<Claimed> {
        self.claim_until(due, node, now, now).await
    }

    /// The same with tasks that are due a little later, until `until`: whoever claims them waits before running them.
    pub async fn claim_until(
        &self,
        due: &[Due],
        node: NodeNumber,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Claimed> {
        let ids: Vec<TaskId> = due.iter().map(|d| d.id).collect();
        let by_table = self.tables_for(&ids).await?.sort(due.iter().copied(), |d| d.id);
        let moment = self.claim_moment(now);
        let mut claims = Vec::with_capacity(by_table.len());
        for (table, due) in &by_table {
            claims.push(self.claim_in(Claim { table: *table, due, node, until, moment }));
        }
        // What one table has given is ours, though another's claim fail.
        let (mut rows, mut failed) = (Vec::new(), None);
        for claimed in futures_util::future::join_all(claims).await {
            match claimed {
                Ok(tasks) => rows.extend(tasks),
                Err(e) => failed = Some(e),
            }
        }
        match failed {
            Some(e) if rows.is_empty() => Err(e),
            failed => Ok(self.without_spent(rows, failed.is_some(), node, now).await),
        }
    }

    async fn claim_in(&self, claim: Claim<'_>) -> Result<Vec<Task>> {
        retrying!(self.pools(), Use::Write, Scope::Statement, "claiming tasks", |c, tried| claim.run(c, tried).await)
    }

    /// Scans and claims in one go, for a deep backlog: at most `limit` tasks of each slice, the earliest first (of several
    /// tables, what is in the oldest).
    pub async fn claim_due(&self, slices: &[Slice], node: NodeNumber, now: Timestamp, limit: u32) -> Result<Claimed> {
        if slices.is_empty() {
            return Ok(Claimed::default());
        }
        if self.dialect() == Dialect::MySql {
            // It cannot update what it selects from.
            let due = self.scan(slices, now, limit).await?;
            return self.claim(&due, node, now).await;
        }
        let mut rows: Vec<Task> = Vec::new();
        let (mut is_partial, moment) = (false, self.claim_moment(now));
        for (table, slices) in self.tables().reading(slices) {
            let slices = with_room(&slices, &rows, limit);
            // Each slice may have as many as the one that has had the least; so none has too many.
            let Some(limit) = slices.iter().map(|(_, room)| *room).min() else { continue };
            let slices: Vec<Slice> = slices.into_iter().map(|(slice, _)| slice).collect();
            let claim = ClaimDue { table, slices: &slices, node, now, limit, moment };
            let claimed = retrying!(self.pools(), Use::Write, Scope::Statement, "claiming due tasks", |c, tried| claim
                .run(c, tried)
                .await);
            match self.learn_from(claimed).await {
                Ok(tasks) => rows.extend(tasks),
                Err(e) if rows.is_empty() => return Err(e),
                Err(_) => {
                    is_partial = true; // what we have is ours
                    break;
                }
            }
        }
        Ok(self.without_spent(rows, is_partial, node, now).await)
    }

    async fn without_spent(&self, rows: Vec<Task>, mut is_partial: bool, node: NodeNumber, now: Timestamp) -> Claimed {
        let (spent, tasks): (Vec<_>, Vec<_>) = rows.into_iter().partition(|task| spent(task, now).is_some());
        let n = spent.len();
        let spent = self.with_all_columns(spent).await;
        let spent = self.expire(spent, Hold::Node(node), now).await.unwrap_or_else(|e| {
            // The others are ours and run. These are ours, too, until the sweep gives them back.
            tracing::error!(error = %e, tasks = n, "tasks whose time is up could not be ended; trying again later");
            is_partial = true;
            Vec::new()
        });
        Claimed { tasks, spent, is_partial }
    }

    /// A claim reads most columns as one value. Where that could not be decoded, the columns that can be are kept.
    async fn with_all_columns(&self, mut tasks: Vec<Task>) -> Vec<Task> {
        let bad: Vec<TaskId> = tasks.iter().filter(|task| task.undecodable.is_some()).map(|task| task.id).collect();
        if bad.is_empty() {
            return tasks;
        }
        let whole = self.get_many(&bad).await.unwrap_or_default();
        for task in &mut tasks {
            if let Some(whole) = whole.iter().find(|whole| (whole.id, whole.version) == (task.id, task.version)) {
                *task = whole.clone();
            }
        }
        tasks
    }
}

/// Of each slice the first `limit`, in the order that they are in.
fn keep_first(due: &mut Vec<Due>, limit: u32) {
    let mut counts: HashMap<(Lane, u8), u32> = HashMap::new();
    due.retain(|d| {
        let n = counts.entry((d.lane, d.id.shard())).or_default();
        *n += 1;
        *n <= limit
    });
}

/// Slices of which less than `limit` has been claimed, and how much less.
fn with_room(slices: &[Slice], claimed: &[Task], limit: u32) -> Vec<(Slice, u32)> {
    let mut counts: HashMap<(Lane, u8), u32> = HashMap::new();
    claimed.iter().for_each(|task| *counts.entry((task.lane, task.shard())).or_default() += 1);
    let room = |s: &Slice| limit.saturating_sub(counts.get(&(s.lane, s.shard)).copied().unwrap_or(0));
    slices.iter().map(|s| (*s, room(s))).filter(|(_, room)| *room > 0).collect()
}

/// The columns of [`read_due`].
const DUE: &str = "t.id, t.version, t.next_retry_time, t.priority, t.lane, t.business_id";

/// A task that waits; or, if that cannot be decoded, its id.
fn read_due(row: &Row) -> sqlx::Result<Result<Due, TaskId>> {
    let mut columns = row.columns();
    let id = TaskId::from_i64(columns.int()?);
    let c = &mut Decoder::new(&mut columns);
    let due = Due {
        id,
        version: c.version("version"),
        due: Timestamp::from_millis(c.int("next_retry_time")),
        priority: c.number("priority"),
        lane: Lane(c.number("lane")),
        business: c.opt_text("business_id").map_or(0, business_hash),
    };
    Ok(if c.is_sound() { Ok(due) } else { Err(id) })
}

/// Which rows of a slice are wanted.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// Pending ones, but none of these business ids. There are none of them, or 1, 2, 4, … (the last one repeated).
    Pending(Vec<String>),
    /// Of those that stand at the head of the slice, the ones for which a condition on `x` holds: their ids only, for MySQL
    /// puts the wide columns of a derived table on disk. Running tasks stand there, since they were due when they were
    /// claimed; a backlog behind them is not looked through.
    AtHead(&'static str, Vec<Value<'static>>),
}

/// Which rows of a lane are wanted.
#[derive(Clone, Debug)]
pub(super) enum InLane {
    /// Pending ones.
    Pending,
    /// The ones for which a condition on `x` holds, however far back they lie: behind tasks of a business id that has reached its
    /// limit, for example. All that is due is read.
    That(&'static str, Vec<Value<'static>>),
}

impl InLane {
    /// A walk of a lane in the scan index, for the lane and the shards given by `lane` and `shards`. It asks for the order of the index, so
    /// that databases read no more of it than the limit.
    fn walk(&self, table: Table, columns: &str, [lane, shards]: [&str; 2]) -> String {
        let which = match self {
            Self::Pending => "x.status = 0",
            Self::That(which, _) => which,
        };
        format!(
            "SELECT {columns} FROM {table} x WHERE x.lane = {lane} AND (({shards} >> x.shard) & 1) = 1 \
             AND x.next_retry_time <= ? AND {which} ORDER BY x.shard, x.next_retry_time LIMIT ?"
        )
    }

    fn bind_to(&self, query: Query<'static>, until: Timestamp, limit: u32) -> Query<'static> {
        let query = query.bind(until);
        let query = match self {
            Self::Pending => query,
            Self::That(_, values) => query.bind_all(values.iter().cloned()),
        };
        query.bind(limit)
    }
}

/// How many rows at the head of a slice are looked at for [`Wanted::AtHead`]. What lies further back comes forward as the
/// rows before it are done.
const HEAD: u32 = 256;

/// Most rows that a claim whose answer was lost can have got of a lane, and more.
const MOST_FOUND: u32 = 100_000;

impl Wanted {
    fn pending_without(businesses: &[String]) -> Self {
        let n = if businesses.is_empty() { 0 } else { businesses.len().next_power_of_two() };
        let last = businesses.last().cloned().unwrap_or_default();
        let all = businesses.iter().cloned().chain(std::iter::repeat(last)).take(n);
        Self::Pending(all.collect())
    }

    /// A walk of the scan index up to a time, for the slice given by `lane`, `shard` and `from`; gives whole rows or, for
    /// SQLite, ids.
    fn walk(&self, table: Table, columns: &str, [lane, shard, from]: [&str; 3]) -> String {
        let slice = format!("lane = {lane} AND shard = {shard} AND next_retry_time >= {from} AND next_retry_time <= ?");
        match self {
            Self::Pending(without) => {
                let not = match without.len() {
                    0 => String::new(),
                    n => format!(" AND (business_id IS NULL OR business_id NOT IN ({}))", vec!["?"; n].join(", ")),
                };
                format!(
                    "SELECT {columns} FROM {table} x WHERE {slice} AND status = 0{not} ORDER BY next_retry_time LIMIT ?"
                )
            }
            Self::AtHead(which, _) => format!(
                "SELECT {columns} FROM (SELECT id, status, locked_by, locked_at FROM {table} \
                  WHERE {slice} ORDER BY next_retry_time LIMIT {HEAD}) x WHERE {which} LIMIT ?"
            ),
        }
    }

    fn bind_to(&self, query: Query<'static>, until: Timestamp, limit: u32) -> Query<'static> {
        let query = query.bind(until);
        let query = match self {
            Self::Pending(without) => query.bind_all(without.iter().cloned()),
            Self::AtHead(_, values) => query.bind_all(values.iter().cloned()),
        };
        query.bind(limit)
    }
}

/// How many walks one statement has at the most: on MySQL each is a branch of a UNION, the others take their keys as one value.
fn most_walks(dialect: Dialect) -> usize {
    if dialect == Dialect::MySql { 256 } else { 4096 }
}

/// What is read from rows of slices, each slice by its own walk of the scan index.
#[allow(clippy::too_many_arguments)]
pub(super) async fn read_slices<T>(
    c: &mut Connection<'_>,
    table: Table,
    slices: &[Slice],
    columns: &str,
    wanted: &Wanted,
    until: Timestamp,
    limit: u32,
    read: impl Fn(&Row) -> sqlx::Result<T>,
) -> sqlx::Result<Vec<T>> {
    let mut found = Vec::new();
    for slices in slices.chunks(most_walks(c.dialect())) {
        let rows = c.rows(slices_query(c.dialect(), table, slices, columns, wanted, until, limit)).await?;
        for row in &rows {
            found.push(read(row)?);
        }
    }
    Ok(found)
}

/// The same of whole lanes.
#[allow(clippy::too_many_arguments)]
pub(super) async fn read_lanes<T>(
    c: &mut Connection<'_>,
    table: Table,
    lanes: &[LaneShards],
    columns: &str,
    wanted: &InLane,
    until: Timestamp,
    limit: u32,
    read: impl Fn(&Row) -> sqlx::Result<T>,
) -> sqlx::Result<Vec<T>> {
    let mut found = Vec::new();
    for lanes in lanes.chunks(256) {
        let rows = c.rows(lanes_query(c.dialect(), table, lanes, columns, wanted, until, limit)).await?;
        for row in &rows {
            found.push(read(row)?);
        }
    }
    Ok(found)
}

pub(super) fn slices_query(
    dialect: Dialect,
    table: Table,
    slices: &[Slice],
    columns: &str,
    wanted: &Wanted,
    until: Timestamp,
    limit: u32,
) -> Query<'static> {
    let walks = Walks {
        dialect,
        table,
        columns,
        keys: ["lane", "shard", "due"],
        none: [Lane(-1).into(), 0_u8.into(), until.into()],
    };
    let keys = slices.iter().map(|s| [s.lane.into(), s.shard.into(), s.from.into()]).collect();
    walks.query(keys, |columns, keys| wanted.walk(table, columns, keys), |query| wanted.bind_to(query, until, limit))
}

pub(super) fn lanes_query(
    dialect: Dialect,
    table: Table,
    lanes: &[LaneShards],
    columns: &str,
    wanted: &InLane,
    until: Timestamp,
    limit: u32,
) -> Query<'static> {
    let walks = Walks { dialect, table, columns, keys: ["lane", "shards"], none: [Lane(-1).into(), 0_i64.into()] };
    let keys = lanes.iter().map(|(lane, shards)| [(*lane).into(), shards.cast_signed().into()]).collect();
    walks.query(keys, |columns, keys| wanted.walk(table, columns, keys), |query| wanted.bind_to(query, until, limit))
}

/// A statement of many walks of the scan index, each from keys of its own.
struct Walks<'a, const N: usize> {
    dialect: Dialect,
    table: Table,
    columns: &'a str,
    keys: [&'static str; N],
    /// The keys of a walk that finds nothing.
    none: [Value<'static>; N],
}

impl<const N: usize> Walks<'_, N> {
    /// `walk` writes one walk, given the columns and what its keys are called; `bind` binds the values that follow the keys.
    fn query(
        &self,
        keys: Vec<[Value<'static>; N]>,
        walk: impl Fn(&str, [&str; N]) -> String,
        bind: impl Fn(Query<'static>) -> Query<'static>,
    ) -> Query<'static> {
        let (columns, table) = (self.columns, self.table);
        if self.dialect == Dialect::MySql {
            // MariaDB has no LATERAL. Filled up to a power of two with walks that find nothing, so that few different
            // statements are prepared.
            let n = keys.len().next_power_of_two();
            let branch = format!("({})", walk(&columns.replace("t.", "x."), ["?"; N]));
            let fill = std::iter::repeat_n(&self.none, n - keys.len());
            let union = query(vec![&*branch; n].join(" UNION ALL "));
            return keys.iter().chain(fill).fold(union, |query, keys| bind(query.bind_all(keys.iter().cloned())));
        }
        let s = Listed::new(self.dialect, &self.keys, keys.into_iter().map(Vec::from).collect());
        let source = &s.source;
        let names = self.keys.map(|key| format!("s.{key}"));
        let names = names.each_ref().map(String::as_str);
        let sql = if self.dialect == Dialect::Postgres {
            let inner = if columns == PLACE { "x.ctid" } else { "*" };
            format!("SELECT {columns} FROM {source} CROSS JOIN LATERAL ({}) t", walk(inner, names))
        } else {
            // SQLite has no LATERAL; CROSS JOIN fixes the order, and the list is walked once for each of its rows.
            let walk = walk("x.id", names);
            format!("SELECT {columns} FROM {source} CROSS JOIN {table} t WHERE t.id IN ({walk})")
        };
        bind(s.bind_to(query(sql)))
    }
}

/// What a task was before a deep claim, which returns its next version and these columns.
fn before(id: TaskId, c: &mut Decoder<'_, Columns<'_>>) -> sqlx::Result<Due> {
    let version = c.version("version").saturating_sub(1);
    let due = Timestamp::from_millis(c.int("next_retry_time"));
    Ok(Due { id, version, due, priority: c.number("priority"), lane: Lane(c.number("lane")), business: 0 })
}

/// Where PostgreSQL has a row. Within one statement that is as good as its id, and found without an index.
const PLACE: &str = "t.ctid";

/// The condition on a node that claims.
const ALIVE: &str = "EXISTS (SELECT 1 FROM redrive_node WHERE number = ? AND dead = 0)";

/// A claim of whatever is due.
pub(super) struct ClaimDue<'a> {
    pub(super) table: Table,
    pub(super) slices: &'a [Slice],
    pub(super) node: NodeNumber,
    pub(super) now: Timestamp,
    pub(super) limit: u32,
    /// Its own, as for [`Claim`].
    pub(super) moment: Timestamp,
}

impl ClaimDue<'_> {
    async fn run(&self, c: &mut Connection<'_>, tried: u32) -> sqlx::Result<Vec<Task>> {
        let rows = c.rows(self.query(c.dialect())).await?;
        let tasks = rows.iter().map(|row| read_claimed(row, before, (self.node, self.moment)));
        let mut tasks = tasks.collect::<sqlx::Result<Vec<Task>>>()?;
        if tried > 0 {
            // What an earlier try got has the same moment; so has what this one got.
            let which = "x.status = 1 AND x.locked_by = ? AND x.locked_at = ?";
            let wanted = InLane::That(which, vec![self.node.into(), self.moment.into()]);
            tasks = super::settle::read_running(c, self.table, &lanes_of(self.slices), &wanted, self.now, MOST_FOUND)
                .await?;
            // What was written as running at that moment is ours as well, and runs already: it was never claimed.
            let is_claimed = |task: &Task| (task.locked_by, task.locked_at) == (Some(self.node), Some(self.moment));
            tasks.retain(|task| is_claimed(task) && task.version > 0);
        }
        Ok(tasks)
    }

    pub(super) fn query(&self, dialect: Dialect) -> Query<'static> {
        let key = if dialect == Dialect::Postgres { PLACE } else { "t.id" };
        let found =
            slices_query(dialect, self.table, self.slices, key, &Wanted::Pending(Vec::new()), self.now, self.limit);
        let set = "status = 1, version = t.version + 1, locked_by = ?, locked_at = ?";
        let t = if dialect == Dialect::Postgres { "t." } else { "" };
        let also = ["version", "next_retry_time", "priority", "lane"].map(|c| format!("{t}{c}")).join(", ");
        let returning = format!("RETURNING {}, {also}", claimed_columns(dialect, t));
        // One that cannot be counted up would stop the statement; the scan finds it.
        let still =
            format!("t.status = 0 AND t.next_retry_time <= ? AND t.version BETWEEN 0 AND {LAST_VERSION} AND {ALIVE}");
        // An array is sorted and walked; a join would start a scan for each row, at twice the time.
        let (open, close) = if dialect == Dialect::Postgres { ("= ANY(ARRAY(", "))") } else { ("IN (", ")") };
        let before = format!("UPDATE {} AS t SET {set} WHERE {key} {open}", self.table);
        let after = format!("{close} AND {still} {returning}");
        let first = [self.node.into(), self.moment.into()];
        found.prefixed(&before).followed_by(&after).bind_first(first).bind(self.now).bind(self.node)
    }
}

/// One claim.
pub(super) struct Claim<'a> {
    pub(super) table: Table,
    pub(super) due: &'a [Due],
    pub(super) node: NodeNumber,
    /// Until when they may be due.
    pub(super) until: Timestamp,
    /// Its own: no other claim of this node has it.
    pub(super) moment: Timestamp,
}

impl Claim<'_> {
    async fn run(&self, c: &mut Connection<'_>, tried: u32) -> sqlx::Result<Vec<Task>> {
        if c.dialect() == Dialect::MySql {
            c.execute(self.query(Dialect::MySql)).await?; // no RETURNING
            return self.claimed(c).await;
        }
        let rows = c.rows(self.query(c.dialect())).await?;
        // After, not before: an earlier try that was still on its way has had its turn by now.
        if tried > 0 {
            return self.claimed(c).await;
        }
        self.read(&rows)
    }

    fn read(&self, rows: &[Row]) -> sqlx::Result<Vec<Task>> {
        let due: IdMap<Due> = self.due.iter().map(|due| (due.id, *due)).collect();
        let known = |id, _: &mut Decoder<'_, Columns<'_>>| due.get(&id).copied().ok_or(sqlx::Error::RowNotFound);
        rows.iter().map(|row| read_claimed(row, known, (self.node, self.moment))).collect()
    }

    fn list<'q>(&self, dialect: Dialect, later: i32) -> Listed<'q> {
        let rows = self.due.iter().map(|d| vec![d.id.into(), (d.version + later).into()]).collect();
        Listed::new(dialect, &["id", "version"], rows)
    }

    pub(super) fn query<'q>(&self, dialect: Dialect) -> Query<'q> {
        let s = self.list(dialect, 0);
        let held = format!("t.status = 0 AND t.next_retry_time <= ? AND {ALIVE}");
        let (source, node, table) = (&s.source, self.node, self.table);
        if dialect == Dialect::MySql {
            let set = "t.status = 1, t.version = t.version + 1, t.locked_by = ?, t.locked_at = ?";
            let sql = format!("UPDATE {source} {} SET {set} WHERE {held}", joined(dialect, table));
            return s.bind_to(query(sql)).bind(node).bind(self.moment).bind(self.until).bind(node);
        }
        let set = "status = 1, version = t.version + 1, locked_by = ?, locked_at = ?";
        let columns = claimed_columns(dialect, if dialect == Dialect::Postgres { "t." } else { "" });
        if dialect == Dialect::Postgres
            && let Some(alike) = alike(self.due.iter().map(|d| (d.id, d.version)))
        {
            let sql = format!("UPDATE {table} AS t SET {set} WHERE {ALIKE} AND {held} RETURNING {columns}");
            return query(sql).bind(node).bind(self.moment).bind_all(alike).bind(self.until).bind(node);
        }
        let sql = format!("UPDATE {table} AS t SET {set} FROM {source} WHERE {SAME} AND {held} RETURNING {columns}");
        // The values of SET stand before those of the list.
        s.bind_to(query(sql).bind(node).bind(self.moment)).bind(self.until).bind(node)
    }

    /// What this claim has got, in an earlier try or just now.
    async fn claimed(&self, c: &mut Connection<'_>) -> sqlx::Result<Vec<Task>> {
        let s = self.list(c.dialect(), 1);
        let sql = format!(
            "SELECT {} FROM {} {} WHERE t.status = 1 AND t.locked_by = ? AND t.locked_at = ?",
            claimed_columns(c.dialect(), "t."),
            s.source,
            joined(c.dialect(), self.table)
        );
        self.read(&c.rows(s.bind_to(query(sql)).bind(self.node).bind(self.moment)).await?)
    }
}
