//! Looking for tasks, dead letters and history: pages of a list, each found by looking at a bounded number of rows.
//!
//! A list goes by id, newest first. Most of what can be asked for has no index (each costs every task), so a look goes over a
//! *window* of [`ROWS`] rows at the most and says where to go on. An index is used where it helps: if there are few rows of a
//! business id or of a method, these are read and nothing else.
//!
//! *Invariants.* Whoever goes on from `continue_after` until there is none has seen every row that was there all the time,
//! once, in the order of the ids. A page may be short, or empty, though there is more.
//!
//! *Tables.* The tables of one month share its ids, and so do all of the archive: they are looked at together, and what one of
//! them has not been looked through for is left to the next page ([`merge`]).

use std::borrow::Cow;
use std::fmt::Display;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::settle::DeadReason;
use crate::task::{Lane, Status, Task};

use super::Store;
use super::archive::{Archived, EndedAs, read_archived};
use super::db::{Connection, Dialect, Query, Row, Value, query};
use super::dead::{DeadTask, read_dead};
use super::layout::{Ids, Table};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{column_list, columns_without_params, read_task};
use super::task::{TaskFilter, created};

/// Rows of a table that one look goes over at the most.
pub const ROWS: u32 = 10_000;
/// Rows of one business id that are read and sorted, rather than windows of all rows looked through for them.
const MOST_SORTED: u32 = 50_000;
/// Ids that can be asked for at once.
pub const MOST_IDS: usize = 1_000;

/// What a look found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found<T> {
    /// Newest first.
    pub items: Vec<T>,
    /// There may be more: look again with this as `after`. `None`: that was all.
    pub continue_after: Option<TaskId>,
}

/// Which dead letters to list. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeadFilter {
    /// What holds for tasks as well.
    #[serde(flatten)]
    pub task: TaskFilter,
    /// Dead for this reason.
    pub reason: Option<DeadReason>,
    /// Taken over by this person.
    pub owner: Option<String>,
    /// Taken over by anyone, or by nobody.
    pub owned: Option<bool>,
    /// Whether someone has said that they have seen it.
    pub acknowledged: Option<bool>,
}

/// Which entries of the archive to list. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveFilter {
    /// What holds for tasks as well.
    pub task: TaskFilter,
    /// Ended so.
    pub ended_as: Option<EndedAs>,
    /// Given up for this reason.
    pub reason: Option<DeadReason>,
}

impl From<TaskFilter> for DeadFilter {
    fn from(task: TaskFilter) -> Self {
        Self { task, ..Self::default() }
    }
}

impl From<TaskFilter> for ArchiveFilter {
    fn from(task: TaskFilter) -> Self {
        Self { task, ..Self::default() }
    }
}

/// `WHERE …` with its values.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions<'q> {
    sql: Vec<Cow<'static, str>>,
    values: Vec<Value<'q>>,
}

impl<'q> Conditions<'q> {
    pub(super) fn add(&mut self, condition: impl Into<Cow<'static, str>>, value: impl Into<Value<'q>>) {
        self.sql.push(condition.into());
        self.values.push(value.into());
    }

    /// One condition with several values.
    pub(super) fn add_all(&mut self, condition: impl Into<Cow<'static, str>>, values: Vec<Value<'q>>) {
        self.sql.push(condition.into());
        self.values.extend(values);
    }

    pub(super) fn equal(&mut self, column: &str, text: Option<&'q str>) {
        if let Some(text) = text {
            self.add(format!("{column} = ?"), text);
        }
    }

    fn is_null(&mut self, column: &str, is_null: Option<bool>) {
        if let Some(is_null) = is_null {
            self.sql.push(format!("{column} IS {}NULL", if is_null { "" } else { "NOT " }).into());
        }
    }

    pub(super) fn add_created(&mut self, (condition, bounds): (&'static str, Vec<TaskId>)) {
        self.sql.push(condition.into());
        self.values.extend(bounds.into_iter().map(Value::from));
    }

    /// One of these holds.
    fn any(parts: &[Self]) -> Self {
        let sql = parts.iter().map(|part| part.sql.join(" AND ")).collect::<Vec<_>>().join(" OR ");
        Self { sql: vec![format!("({sql})").into()], values: parts.iter().flat_map(|p| p.values.clone()).collect() }
    }

    fn and(mut self, other: &Self) -> Self {
        self.sql.extend(other.sql.iter().cloned());
        self.values.extend(other.values.iter().cloned());
        self
    }

    pub(super) fn query(&self, select: &str, rest: &str) -> Query<'q> {
        let all = if self.sql.is_empty() { "1 = 1".to_owned() } else { self.sql.join(" AND ") };
        query(format!("{select} WHERE {all} {rest}")).bind_all(self.values.iter().cloned())
    }
}

/// What a filter says, by how it is used.
#[derive(Clone, Debug)]
pub(super) struct Wanted<'q> {
    /// Bounds of the ids.
    range: Conditions<'q>,
    /// What a table has rows of in the order of their ids: a window is one of them.
    along: Conditions<'q>,
    /// What an index knows, though not in that order, and up to how many rows of it are few. Each by itself; of its parts one holds.
    by_index: Vec<(Vec<Conditions<'q>>, u32)>,
    /// Everything else.
    rest: Conditions<'q>,
}

impl TaskFilter {
    /// Of a table with these ids.
    fn wanted(&self, dialect: Dialect, ids: Ids) -> Wanted<'_> {
        let mut wanted = Wanted {
            range: self.range(ids),
            along: Conditions::default(),
            by_index: Vec::new(),
            rest: self.rest(dialect),
        };
        if let Some(id) = &self.business_id {
            let mut business = Conditions::default();
            business.add("business_id = ?", id.as_str());
            wanted.by_index.push((vec![business], MOST_SORTED));
        }
        if let Some(method) = &self.method {
            wanted.by_index.push((lanes(method), ROWS));
        }
        wanted
    }

    fn range(&self, ids: Ids) -> Conditions<'_> {
        let mut all = Conditions::default();
        if let Some(after) = self.after {
            all.add("id < ?", after);
        }
        for (time, is_first) in [(self.created_from, true), (self.created_before, false)] {
            if let Some(time) = time {
                all.add_created(created(TaskId::first_at(time), is_first, ids));
            }
        }
        if let Some(ids) = &self.ids {
            let marks = vec!["?"; ids.len()].join(", ");
            all.sql.push(if ids.is_empty() { "1 = 0".into() } else { format!("id IN ({marks})").into() });
            all.values.extend(ids.iter().map(|id| Value::from(*id)));
        }
        all
    }

    fn rest(&self, dialect: Dialect) -> Conditions<'_> {
        let mut all = Conditions::default();
        if let Some(status) = self.status {
            all.add("status = ?", i64::from(status == Status::Running));
        }
        if let Some(time) = self.due_from {
            all.add("next_retry_time >= ?", time);
        }
        if let Some(time) = self.due_before {
            all.add("next_retry_time < ?", time);
        }
        all.equal("method_name", self.method.as_deref());
        all.equal("task_key", self.key.as_deref());
        all.equal("business_type", self.business_type.as_deref());
        all.equal("business_id", self.business_id.as_deref());
        all.equal("last_error_kind", self.error_kind.as_deref());
        if let Some(text) = &self.error_contains {
            all.contains(dialect, text);
        }
        all
    }

    /// What is read of each.
    fn columns(&self) -> String {
        if self.without_params { columns_without_params() } else { column_list("") }
    }

    fn check(&self) -> Result<()> {
        let texts = [&self.method, &self.key, &self.business_type, &self.business_id, &self.error_kind];
        texts.into_iter().chain([&self.error_contains]).try_for_each(|text| no_nul(text.as_deref()))?;
        match self.ids.as_ref().map_or(0, Vec::len) {
            n if n > MOST_IDS => Err(Error::invalid("ids", format!("must be at most {MOST_IDS}, are {n}"))),
            _ => Ok(()),
        }
    }
}

/// A text that no row can have is a mistake of whoever asks; PostgreSQL would say so in words of its own.
pub(super) fn no_nul(text: Option<&str>) -> Result<()> {
    match text.is_some_and(|text| text.contains('\0')) {
        true => Err(Error::invalid("filter", "must not contain NUL bytes")),
        false => Ok(()),
    }
}

impl<'q> Conditions<'q> {
    /// The error has this text in it; whether letters are great or small does not matter (to SQLite: of A to Z). Not LIKE,
    /// to which some characters mean something.
    fn contains(&mut self, dialect: Dialect, text: &'q str) {
        let position = if dialect == Dialect::Postgres { "STRPOS" } else { "INSTR" };
        let condition = format!("({position}(LOWER(last_error_msg), ?) > 0 OR {position}(last_error_msg, ?) > 0)");
        self.add(condition, text.to_lowercase());
        self.values.push(text.into());
    }
}

/// A method's own lane, and those of its parts.
fn lanes<'q>(method: &str) -> Vec<Conditions<'q>> {
    let range = Lane::parts_of(method);
    let (mut own, mut parts) = (Conditions::default(), Conditions::default());
    own.add("lane = ?", Lane::of(method));
    parts.add("lane >= ?", *range.start());
    parts.add("lane <= ?", *range.end());
    vec![own, parts]
}

impl DeadFilter {
    /// Letters have an index of reason and id.
    fn wanted(&self, dialect: Dialect, ids: Ids) -> Wanted<'_> {
        let mut wanted = self.task.wanted(dialect, ids);
        if let Some(reason) = self.reason {
            wanted.along.add("dead_reason = ?", reason.as_str());
        }
        wanted.rest.equal("dead_reason", self.reason.map(DeadReason::as_str));
        wanted.rest.equal("owner", self.owner.as_deref());
        wanted.rest.is_null("owner", self.owned.map(|owned| !owned));
        wanted.rest.is_null("acknowledged_at", self.acknowledged.map(|seen| !seen));
        wanted
    }
}

impl ArchiveFilter {
    /// The archive has no index of lanes.
    fn wanted(&self, dialect: Dialect, ids: Ids) -> Wanted<'_> {
        let mut wanted = self.task.wanted(dialect, ids);
        wanted.by_index.truncate(usize::from(self.task.business_id.is_some()));
        wanted.rest.equal("ended_as", self.ended_as.map(EndedAs::as_str));
        wanted.rest.equal("dead_reason", self.reason.map(DeadReason::as_str));
        wanted
    }
}

/// What was found in a table, and down to which id it was looked through: `None` is to its end.
#[derive(Debug)]
struct Page<T> {
    items: Vec<(TaskId, T)>,
    floor: Option<TaskId>,
}

/// Looks through a window of one table. The first column that is selected is the id.
async fn look<T>(
    c: &mut Connection<'_>,
    table: impl Display + Copy,
    select: &str,
    wanted: &Wanted<'_>,
    limit: u32,
    read: fn(&Row) -> sqlx::Result<T>,
) -> sqlx::Result<Page<T>> {
    let select = format!("SELECT {select} FROM {table}");
    let narrow = narrow(c, table, wanted).await?;
    let is_narrow = narrow.is_some();
    let floor = if is_narrow { None } else { floor(c, table, wanted).await? };
    let mut all = narrow.unwrap_or_else(|| wanted.along.clone()).and(&wanted.range).and(&wanted.rest);
    if let Some(floor) = floor {
        all.add("id >= ?", floor);
    }
    // A sum is in no index: so the rows that are few are sorted, and not all rows walked in their order.
    let order = if is_narrow { "ORDER BY id + 0 DESC LIMIT ?" } else { "ORDER BY id DESC LIMIT ?" };
    let rows = c.rows(all.query(&select, order).bind(limit)).await?;
    let items = rows.iter().map(|row| Ok((TaskId::from_i64(row.int()?), read(row)?)));
    let items = items.collect::<sqlx::Result<Vec<_>>>()?;
    let floor = if items.len() >= limit as usize { items.last().map(|(id, _)| *id) } else { floor };
    Ok(Page { items, floor })
}

/// A condition that an index knows few rows of.
async fn narrow<'q>(
    c: &mut Connection<'_>,
    table: impl Display,
    wanted: &Wanted<'q>,
) -> sqlx::Result<Option<Conditions<'q>>> {
    for (parts, few) in &wanted.by_index {
        // Part by part: with OR and a limit, PostgreSQL walks the whole index in the hope of an early match.
        let some = parts.iter().map(|part| format!("SELECT 1 AS n FROM {table} WHERE {}", part.sql.join(" AND ")));
        let some = some.collect::<Vec<_>>().join(" UNION ALL ");
        let count = query(format!("SELECT COUNT(*) FROM ({some} LIMIT ?) x"));
        let count = count.bind_all(parts.iter().flat_map(|part| part.values.iter().cloned())).bind(few + 1);
        let n = c.row(count).await?.map(|row| row.int()).transpose()?.unwrap_or(0);
        if n <= i64::from(*few) {
            return Ok(Some(Conditions::any(parts)));
        }
    }
    Ok(None)
}

/// The last id of the window, if there is anything behind it.
async fn floor(c: &mut Connection<'_>, table: impl Display, wanted: &Wanted<'_>) -> sqlx::Result<Option<TaskId>> {
    let all = wanted.along.clone().and(&wanted.range);
    let last = all.query(&format!("SELECT id FROM {table}"), "ORDER BY id DESC LIMIT 1 OFFSET ?").bind(ROWS - 1);
    c.row(last).await?.map(|row| Ok(TaskId::from_i64(row.int()?))).transpose()
}

/// Pages of tables that share their ids as one. What lies below a floor has not been looked for everywhere.
fn merge<T>(pages: Vec<Page<T>>, limit: u32) -> Page<T> {
    let floor = pages.iter().filter_map(|page| page.floor).max();
    let mut items: Vec<_> = pages.into_iter().flat_map(|page| page.items).collect();
    items.retain(|(id, _)| floor.is_none_or(|floor| *id >= floor));
    items.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
    let cut = items.len() > limit as usize;
    items.truncate(limit as usize);
    let floor = if cut { items.last().map(|(id, _)| *id) } else { floor };
    Page { items, floor }
}

impl<T> Found<T> {
    fn of(page: Page<T>) -> Self {
        Self { items: page.items.into_iter().map(|(_, item)| item).collect(), continue_after: page.floor }
    }
}

/// Looks again and again until the page is full or there is no more. A macro, as for `retrying!`.
macro_rules! goes_on {
    ($after:expr, $limit:expr, |$left:ident| $look:expr) => {{
        let mut items = Vec::new();
        loop {
            let $left = u32::try_from(($limit as usize).saturating_sub(items.len())).unwrap_or(0);
            let found = $look.await?;
            items.extend(found.items);
            if found.continue_after.is_none() || items.len() >= $limit as usize {
                break Ok(items);
            }
            $after = found.continue_after;
        }
    }};
}

impl Store {
    /// Looks for tasks, newest first: at a bounded number of rows.
    pub async fn search(&self, filter: &TaskFilter, limit: u32) -> Result<Found<Task>> {
        self.search_as(filter, &filter.columns(), limit, read_task).await
    }

    async fn search_as<T>(
        &self,
        filter: &TaskFilter,
        select: &str,
        limit: u32,
        read: fn(&Row) -> sqlx::Result<T>,
    ) -> Result<Found<T>> {
        filter.check()?;
        let tables: Vec<Table> = self.tables().all().collect();
        let mut found = Page { items: Vec::new(), floor: None };
        // Month by month: older ones only if there is room on the page.
        for month in tables.chunk_by(|a, b| a.month() == b.month()) {
            let mut pages = Vec::with_capacity(month.len());
            let left = limit.saturating_sub(u32::try_from(found.items.len()).unwrap_or(limit));
            for table in month {
                let wanted = filter.wanted(self.dialect(), table.ids());
                let page = retrying!(self.pools(), Use::Read, Scope::Statement, "looking for tasks", |c, _| look(
                    c, table, select, &wanted, left, read
                )
                .await);
                pages.push(self.learn_from(page).await?);
            }
            let page = merge(pages, left);
            found.items.extend(page.items);
            found.floor = page.floor;
            if found.floor.is_some() {
                break;
            }
            if found.items.len() >= limit as usize {
                found.floor = found.items.last().map(|(id, _)| *id);
                break;
            }
        }
        Ok(Found::of(found))
    }

    /// Looks for dead letters, newest first: at a bounded number of rows.
    pub async fn search_dead(&self, filter: &DeadFilter, limit: u32) -> Result<Found<DeadTask>> {
        let select = format!("{}, {}", filter.task.columns(), super::dead::COLUMNS);
        self.search_dead_as(filter, &select, limit, read_dead).await
    }

    async fn search_dead_as<T>(
        &self,
        filter: &DeadFilter,
        select: &str,
        limit: u32,
        read: fn(&Row) -> sqlx::Result<T>,
    ) -> Result<Found<T>> {
        filter.task.check()?;
        no_nul(filter.owner.as_deref())?;
        let wanted = filter.wanted(self.dialect(), self.tables().ids());
        let page = retrying!(self.pools(), Use::Read, Scope::Statement, "looking for dead letters", |c, _| look(
            c,
            "retry_dead",
            select,
            &wanted,
            limit,
            read
        )
        .await)?;
        Ok(Found::of(merge(vec![page], limit)))
    }

    /// Looks through the archive, newest tasks first: at a bounded number of rows.
    pub async fn search_archive(&self, filter: &ArchiveFilter, limit: u32) -> Result<Found<Archived>> {
        filter.task.check()?;
        let tables = self.tables();
        let wanted = filter.wanted(self.dialect(), tables.ids());
        let select = format!("{}, {}", filter.task.columns(), super::archive::COLUMNS.join(", "));
        let mut pages = Vec::new();
        for archive in tables.all_archives() {
            let page =
                retrying!(self.pools(), Use::Read, Scope::Statement, "looking through the archive", |c, _| look(
                    c,
                    archive,
                    &select,
                    &wanted,
                    limit,
                    read_archived
                )
                .await);
            pages.push(self.learn_from(page).await?);
        }
        Ok(Found::of(merge(pages, limit)))
    }

    /// Tasks, newest first, one page at a time. It goes on looking until the page is full; with a filter that few tasks
    /// satisfy, [`search`](Self::search) answers sooner.
    pub async fn list(&self, filter: &TaskFilter, limit: u32) -> Result<Vec<Task>> {
        let mut filter = filter.clone();
        goes_on!(filter.after, limit, |left| self.search(&filter, left))
    }

    /// Dead letters, newest first, one page at a time.
    pub async fn dead(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadTask>> {
        let mut filter = filter.clone();
        goes_on!(filter.task.after, limit, |left| self.search_dead(&filter, left))
    }

    /// What has ended, newest first, one page at a time.
    pub async fn archive(&self, filter: &ArchiveFilter, limit: u32) -> Result<Vec<Archived>> {
        let mut filter = filter.clone();
        goes_on!(filter.task.after, limit, |left| self.search_archive(&filter, left))
    }

    /// The ids alone.
    pub(super) async fn search_ids(&self, filter: &TaskFilter, limit: u32) -> Result<Found<TaskId>> {
        self.search_as(filter, "id", limit, read_id).await
    }

    /// The same of dead letters.
    pub(super) async fn search_dead_ids(&self, filter: &DeadFilter, limit: u32) -> Result<Found<TaskId>> {
        self.search_dead_as(filter, "id", limit, read_id).await
    }
}

fn read_id(row: &Row) -> sqlx::Result<TaskId> {
    Ok(TaskId::from_i64(row.int()?))
}
