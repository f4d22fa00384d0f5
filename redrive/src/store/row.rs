//! Tasks as rows: the columns that `retry_task`, `retry_dead` and `retry_archive` have in common, and the two
//! directions between them and a [`Task`]. And how many rows go into one statement.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use crate::classify::Kind;
use crate::clock::{Timestamp, millis};
use crate::id::TaskId;
use crate::new_task::default_policy;
use crate::policy::Policy;
use crate::task::{Business, Lane, LastError, NodeNumber, Status, StopRequest, Task};

use super::db::{Columns, Connection, Dialect, Query, Row, Value, query};
use super::decode::{Cells, Decoder};

/// The columns that are read, in the order of [`read_task`]; `shard` and `backoff_strategy` follow from the others, and `wakes` is not used.
pub(super) const COLUMNS: [&str; 34] = [
    "id",
    "lane",
    "method_name",
    "params_json",
    "task_key",
    "business_type",
    "business_id",
    "status",
    "policy",
    "max_attempts",
    "max_retry_duration",
    "deadline",
    "attempt_count",
    "crashes",
    "postponements",
    "next_retry_time",
    "priority",
    "dedup_for",
    "created_at",
    "updated_at",
    "first_failed_at",
    "last_error_kind",
    "last_error_msg",
    "last_error_time",
    "history",
    "version",
    "locked_by",
    "locked_at",
    "cancel_requested",
    "notified_at",
    "traceparent",
    "origin_id",
    "created_by",
    "updated_by",
];

/// `t.id, t.lane, …`
pub(super) fn column_list(prefix: &str) -> String {
    COLUMNS.map(|c| format!("{prefix}{c}")).join(", ")
}

/// The same with empty params.
pub(super) fn columns_without_params() -> String {
    COLUMNS.map(|c| if c == "params_json" { "''" } else { c }).join(", ")
}

/// A column as it is written.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// With which others it is left out.
    group: Group,
    pub(super) value: for<'t> fn(&'t Task) -> Value<'t>,
}

/// Columns that a plain task has at their defaults. A batch in which all do leaves them out: fewer values to send, and as
/// many statements as there are mixtures in practice, which is few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Always,
    Business,
    Policy,
    Errors,
    Owner,
    Rest,
}

impl Group {
    fn is_needed(self, task: &Task) -> bool {
        match self {
            Self::Always => true,
            Self::Business => task.business.is_some(),
            Self::Policy => !Arc::ptr_eq(&task.policy, &default_policy()),
            Self::Errors => {
                task.last_error.is_some()
                    || task.first_failed_at.is_some()
                    || task.attempts > 0
                    || !task.history.is_empty()
            }
            Self::Owner => task.version != 0 || task.locked_by.is_some() || task.status == Status::Running,
            Self::Rest => {
                let counted = task.crashes > 0 || task.postponements > 0 || task.priority != 0;
                let known = task.traceparent.is_some() || task.created_by.is_some() || task.updated_by.is_some();
                let marked = task.stop != StopRequest::None || task.notified_at.is_some() || task.origin_id.is_some();
                counted || known || marked || !task.dedup_for.is_zero()
            }
        }
    }
}

/// Everything that is written of a task.
const WRITTEN: [Column; 36] = {
    use Group::{Always, Business, Errors, Owner, Policy, Rest};
    const fn column(name: &'static str, group: Group, value: for<'t> fn(&'t Task) -> Value<'t>) -> Column {
        Column { name, group, value }
    }
    [
        column("id", Always, |t| t.id.into()),
        column("lane", Always, |t| t.lane.into()),
        column("shard", Always, |t| t.shard().into()),
        column("method_name", Always, |t| t.method.as_str().into()),
        column("params_json", Always, |t| t.params.as_str().into()),
        column("task_key", Always, |t| t.key.as_deref().into()),
        column("next_retry_time", Always, |t| t.due.into()),
        column("created_at", Always, |t| t.created_at.into()),
        column("updated_at", Always, |t| t.updated_at.into()),
        column("business_type", Business, |t| t.business.as_ref().map(|b| b.kind.as_str()).into()),
        column("business_id", Business, |t| t.business.as_ref().map(|b| b.id.as_str()).into()),
        column("policy", Policy, |t| stored_policy(&t.policy).into()),
        column("max_attempts", Policy, |t| t.policy.max_attempts.map(i64::from).into()),
        column("max_retry_duration", Policy, |t| t.policy.max_duration.map(millis).into()),
        column("deadline", Policy, |t| t.policy.deadline.into()),
        column("backoff_strategy", Policy, |t| stored_backoff(&t.policy).into()),
        column("attempt_count", Errors, |t| t.attempts.into()),
        column("first_failed_at", Errors, |t| t.first_failed_at.into()),
        column("last_error_kind", Errors, |t| t.last_error.as_ref().map(|e| e.kind.as_str()).into()),
        column("last_error_msg", Errors, |t| t.last_error.as_ref().map(|e| e.message.as_str()).into()),
        column("last_error_time", Errors, |t| t.last_error.as_ref().map(|e| e.at).into()),
        column("history", Errors, |t| stored_history(t).into()),
        column("status", Owner, |t| i64::from(t.status == Status::Running).into()),
        column("version", Owner, |t| t.version.into()),
        column("locked_by", Owner, |t| t.locked_by.map_or(0, |n| n.0).into()),
        column("locked_at", Owner, |t| t.locked_at.map_or(0, Timestamp::as_millis).into()),
        column("crashes", Rest, |t| t.crashes.into()),
        column("postponements", Rest, |t| t.postponements.into()),
        column("priority", Rest, |t| i64::from(t.priority).into()),
        column("dedup_for", Rest, |t| millis(t.dedup_for).into()),
        column("cancel_requested", Rest, |t| (t.stop as i64).into()),
        column("notified_at", Rest, |t| t.notified_at.into()),
        column("traceparent", Rest, |t| t.traceparent.as_deref().into()),
        column("origin_id", Rest, |t| t.origin_id.into()),
        column("created_by", Rest, |t| t.created_by.as_deref().into()),
        column("updated_by", Rest, |t| t.updated_by.as_deref().into()),
    ]
};

/// The columns that these tasks need.
pub(super) fn needed_columns(tasks: &[&Task]) -> Vec<Column> {
    let needed = |c: &Column| tasks.iter().any(|task| c.group.is_needed(task));
    let mut by_group: Vec<(Group, bool)> = Vec::new();
    let mut is_needed = |c: &Column| match by_group.iter().find(|(group, _)| *group == c.group) {
        Some((_, needed)) => *needed,
        None => {
            by_group.push((c.group, needed(c)));
            needed(c)
        }
    };
    WRITTEN.into_iter().filter(|c| is_needed(c)).collect()
}

/// Names and values of everything, for the tables that keep whole tasks.
pub(super) fn written_columns() -> Vec<&'static str> {
    WRITTEN.iter().map(|c| c.name).collect()
}

/// The values of [`written_columns`].
pub(super) fn write_task(task: &Task) -> Vec<Value<'_>> {
    WRITTEN.iter().map(|c| (c.value)(task)).collect()
}

/// The columns in which a policy is stored, beside `max_attempts`, `max_retry_duration` and `deadline`.
pub(super) fn stored_policy(policy: &Arc<Policy>) -> Option<String> {
    if Arc::ptr_eq(policy, &default_policy()) {
        return None;
    }
    let rest = Policy {
        max_attempts: Policy::default().max_attempts,
        max_duration: None,
        deadline: None,
        ..(**policy).clone()
    };
    // Writing a policy as JSON cannot fail: it has no maps and no foreign types.
    (rest != Policy::default()).then(|| serde_json::to_string(&rest).unwrap_or_default())
}

/// The name of the backoff, if it is not the default one.
pub(super) fn stored_backoff(policy: &Policy) -> Option<&'static str> {
    Some(policy.backoff.name()).filter(|name| *name != "EXPONENTIAL")
}

pub(super) fn stored_history(task: &Task) -> Option<String> {
    (!task.history.is_empty()).then(|| serde_json::to_string(&task.history).unwrap_or_default())
}

/// A task from the columns of [`COLUMNS`].
pub(super) fn read_task(row: &Row) -> sqlx::Result<Task> {
    read_columns(&mut row.columns())
}

/// The same, leaving the reader behind them.
pub(super) fn read_columns(c: &mut Columns<'_>) -> sqlx::Result<Task> {
    let id = TaskId::from_i64(c.int()?);
    Ok(decode_task(id, c))
}

/// A task from its columns after the id. Pure: what cannot be decoded is said in [`Task::undecodable`].
fn decode_task<'r>(id: TaskId, cells: &mut impl Cells<Text = &'r str>) -> Task {
    let c = &mut Decoder::new(cells);
    let lane = Lane(c.number("lane"));
    let method = c.text("method_name").to_owned();
    let params = c.text("params_json").to_owned();
    let key = c.opt_text("task_key").map(str::to_owned);
    let business = decode_business(c);
    let status = if c.int("status") == 1 { Status::Running } else { Status::Pending };
    let policy = decode_policy(id, c);
    let attempts = c.number("attempt_count");
    let crashes = c.number("crashes");
    let postponements = c.number("postponements");
    let due = Timestamp::from_millis(c.int("next_retry_time"));
    let priority = c.number("priority");
    let dedup_for = c.duration("dedup_for");
    let created_at = Timestamp::from_millis(c.int("created_at"));
    let updated_at = Timestamp::from_millis(c.int("updated_at"));
    let first_failed_at = c.time("first_failed_at");
    let kind = c.opt_text("last_error_kind").map(str::to_owned);
    let message = c.opt_text("last_error_msg").map(str::to_owned);
    let last_error = last_error(kind, message, c.time("last_error_time"));
    let history = c.opt_text("history").and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
    let version = c.version("version");
    let locked_by = Some(c.int("locked_by")).filter(|n| *n != 0).map(NodeNumber);
    let locked_at = Some(c.int("locked_at")).filter(|at| *at != 0).map(Timestamp::from_millis);
    let stop = c.int("cancel_requested");
    let mut task = Task {
        id,
        lane,
        method,
        params,
        key,
        business,
        status,
        policy,
        attempts,
        crashes,
        postponements,
        due,
        priority,
        dedup_for,
        created_at,
        updated_at,
        first_failed_at,
        last_error,
        history,
        version,
        locked_by,
        locked_at,
        stop: c.stop("cancel_requested", stop),
        notified_at: c.time("notified_at"),
        traceparent: c.opt_text("traceparent").map(str::to_owned),
        origin_id: c.opt_int("origin_id").map(TaskId::from_i64),
        created_by: c.opt_text("created_by").map(str::to_owned),
        updated_by: c.opt_text("updated_by").map(str::to_owned),
        undecodable: None,
    };
    c.mark(&mut task);
    task
}

/// What a task is about.
pub(super) fn decode_business<'r, C: Cells<Text = &'r str>>(c: &mut Decoder<'_, C>) -> Option<Business> {
    match (c.opt_text("business_type"), c.opt_text("business_id")) {
        (Some(kind), Some(id)) => Some(Business { kind: kind.to_owned(), id: id.to_owned() }),
        _ => None,
    }
}

/// The limit of attempts. One that cannot be decoded is the default one: none at all would be the most that could be granted.
pub(super) fn decode_max_attempts<C: Cells>(c: &mut Decoder<'_, C>) -> Option<u32> {
    let stored = c.opt_int("max_attempts")?;
    c.narrow("max_attempts", stored).or(default_policy().max_attempts)
}

/// A policy: most of it as JSON, and its limits.
pub(super) fn decode_policy<'r, C: Cells<Text = &'r str>>(id: TaskId, c: &mut Decoder<'_, C>) -> Arc<Policy> {
    let json = c.opt_text("policy");
    let max_attempts = decode_max_attempts(c);
    let max_duration = c.opt_number("max_retry_duration").map(Duration::from_millis);
    read_policy(id, json, max_attempts, max_duration, c.time("deadline"))
}

pub(super) fn read_business(c: &mut Columns<'_>) -> sqlx::Result<Option<Business>> {
    Ok(match (c.opt_text()?, c.opt_text()?) {
        (Some(kind), Some(id)) => Some(Business { kind: kind.to_owned(), id: id.to_owned() }),
        _ => None,
    })
}

pub(super) fn last_error(kind: Option<String>, message: Option<String>, at: Option<Timestamp>) -> Option<LastError> {
    let (kind, at) = (Kind::from(kind?), at?);
    Some(LastError { kind, message: message.unwrap_or_default(), at })
}

/// A stored policy. One that cannot be read (written by a later version, or by hand) must not stop the task: it goes
/// on under the default one and its own limits, which have columns of their own.
pub(super) fn read_policy(
    id: TaskId,
    json: Option<&str>,
    max_attempts: Option<u32>,
    max_duration: Option<Duration>,
    deadline: Option<Timestamp>,
) -> Arc<Policy> {
    let default = default_policy();
    if json.is_none() && max_attempts == default.max_attempts && max_duration.is_none() && deadline.is_none() {
        return default;
    }
    let rest = json.map_or_else(|| Ok(Policy::default()), serde_json::from_str).unwrap_or_else(|e| {
        tracing::error!(task = %id, error = %e, "the stored policy cannot be read; the default one is used");
        Policy::default()
    });
    Arc::new(Policy { max_attempts, max_duration, deadline, ..rest })
}

pub(super) fn time(c: &mut Columns<'_>) -> sqlx::Result<Option<Timestamp>> {
    Ok(c.opt_int()?.map(Timestamp::from_millis))
}

pub(super) fn narrow<T: TryFrom<i64>>(n: i64) -> sqlx::Result<T> {
    T::try_from(n).map_err(|_| sqlx::Error::Decode(format!("{n} is out of range").into()))
}

/// Inserts many rows, all with the same columns. `suffix` (with its values) is what follows them: a conflict clause,
/// RETURNING. What it returns is put together from all statements.
pub(super) async fn insert_rows<'q>(
    c: &mut Connection<'_>,
    table: impl Display,
    columns: &[&str],
    rows: Vec<Vec<Value<'q>>>,
    suffix: &str,
    suffix_values: &[Value<'q>],
) -> sqlx::Result<Vec<Row>> {
    let into = format!("INSERT INTO {table} ({})", columns.join(", "));
    let mut returned = Vec::new();
    let row = format!("({})", vec!["?"; columns.len()].join(", "));
    let mut rows = rows;
    while !rows.is_empty() {
        let fit = within_bytes(&rows, |row| row.iter().map(Value::bytes).sum());
        let query = match c.dialect() {
            Dialect::Postgres => {
                let rest = rows.split_off(fit);
                let (source, values) = unnest(std::mem::replace(&mut rows, rest));
                query(format!("{into} SELECT * FROM {source} {suffix}")).bind_all(values)
            }
            Dialect::Sqlite | Dialect::MySql => {
                let n = statement_size(fit, columns.len());
                let sql = format!("{into} VALUES {} {suffix}", vec![&*row; n].join(", "));
                query(sql).bind_all(rows.drain(..n).flatten())
            }
        };
        returned.extend(c.rows(query.bind_all(suffix_values.iter().cloned())).await?);
    }
    Ok(returned)
}

/// Most bytes of a statement, about: servers refuse what is too large by closing the connection, and that looks like one that is away.
const MOST_BYTES: usize = 4 << 20;

/// How many of these, from the first on, are not too large for a statement; at least one, if there is any.
pub(super) fn within_bytes<T>(rows: &[T], bytes: impl Fn(&T) -> usize) -> usize {
    let mut sum = 0;
    let fits = |row: &&T| {
        sum += bytes(row);
        sum <= MOST_BYTES
    };
    rows.iter().take_while(fits).count().max(1).min(rows.len())
}

/// How many of `rows` go into the next statement: a power of two, so that few different statements are prepared; at
/// most 512, and no more values than SQLite takes (32,766).
fn statement_size(rows: usize, columns: usize) -> usize {
    let most = rows.min(512).min(32_000 / columns.max(1)).max(1);
    1 << most.ilog2()
}

/// Rows as PostgreSQL's `unnest(…)` of whole columns: one statement, whatever their number.
pub(super) fn unnest<'q>(rows: Vec<Vec<Value<'q>>>) -> (String, Vec<Value<'q>>) {
    let mut columns: Vec<Value<'q>> = Vec::new();
    let n = rows.len();
    for row in rows {
        if columns.is_empty() {
            columns = row.iter().map(|value| empty_column(value, n)).collect();
        }
        columns.iter_mut().zip(row).for_each(|(column, value)| push(column, value));
    }
    let types: Vec<_> = columns.iter().map(array_type).collect();
    (format!("unnest({})", types.join(", ")), columns)
}

/// Columns of tasks for PostgreSQL, built one by one.
pub(super) fn unnest_tasks<'t>(tasks: &[&'t Task], columns: &[Column]) -> (String, Vec<Value<'t>>) {
    let values: Vec<Value<'t>> =
        columns.iter().map(|c| gather(tasks.iter().map(|t| (c.value)(t)), tasks.len())).collect();
    let types: Vec<_> = values.iter().map(array_type).collect();
    (format!("unnest({})", types.join(", ")), values)
}

/// Values of one type as a column of them.
fn gather<'q>(values: impl Iterator<Item = Value<'q>>, n: usize) -> Value<'q> {
    let mut values = values.peekable();
    let mut column = values.peek().map_or(Value::Ints(Vec::new()), |like| empty_column(like, n));
    values.for_each(|value| push(&mut column, value));
    column
}

fn push<'q>(column: &mut Value<'q>, value: Value<'q>) {
    match (column, value) {
        (Value::Ints(column), Value::Int(v)) => column.push(v),
        (Value::Texts(column), Value::Text(v)) => column.push(v),
        (Value::Hashes(column), Value::Bytes(v)) => column.push(v),
        _ => {} // all values of a column come from one function, so it has one type
    }
}

fn empty_column<'q>(like: &Value<'q>, n: usize) -> Value<'q> {
    match like {
        Value::Int(_) | Value::Ints(_) => Value::Ints(Vec::with_capacity(n)),
        Value::Text(_) | Value::Texts(_) => Value::Texts(Vec::with_capacity(n)),
        Value::Bytes(_) | Value::Hashes(_) => Value::Hashes(Vec::with_capacity(n)),
    }
}

fn array_type(column: &Value<'_>) -> &'static str {
    match column {
        Value::Int(_) | Value::Ints(_) => "?::int8[]",
        Value::Text(_) | Value::Texts(_) => "?::text[]",
        Value::Bytes(_) | Value::Hashes(_) => "?::bytea[]",
    }
}

/// A table of values to join with, under the name `s`: whole columns on PostgreSQL, one JSON value elsewhere. One
/// statement text for any number of rows.
pub(super) struct Listed<'q> {
    pub(super) source: String,
    values: Vec<Value<'q>>,
}

impl<'q> Listed<'q> {
    pub(super) fn new(dialect: Dialect, columns: &[&str], rows: Vec<Vec<Value<'q>>>) -> Self {
        let types: Vec<_> =
            rows.first().map(|row| row.iter().map(|v| matches!(v, Value::Int(_))).collect()).unwrap_or_default();
        let (source, values) = match dialect {
            Dialect::Postgres => {
                let (source, values) = unnest(rows);
                (format!("{source} AS s({})", columns.join(", ")), values)
            }
            Dialect::Sqlite => {
                let columns: Vec<_> =
                    columns.iter().enumerate().map(|(i, c)| format!("value ->> {i} AS {c}")).collect();
                (format!("(SELECT {} FROM json_each(?)) AS s", columns.join(", ")), vec![json(&rows)])
            }
            Dialect::MySql => {
                let column = |(i, c): (usize, &&str)| {
                    let sql_type =
                        if types.get(i) == Some(&true) { "BIGINT" } else { "LONGTEXT CHARACTER SET utf8mb4" };
                    format!("{c} {sql_type} PATH '$[{i}]'")
                };
                let columns: Vec<_> = columns.iter().enumerate().map(column).collect();
                (format!("JSON_TABLE(?, '$[*]' COLUMNS ({})) AS s", columns.join(", ")), vec![json(&rows)])
            }
        };
        Self { source, values }
    }

    pub(super) fn bind_to(self, query: Query<'q>) -> Query<'q> {
        query.bind_all(self.values)
    }
}

/// The row is the one that was listed.
pub(super) const SAME: &str = "t.id = s.id AND t.version = s.version";

/// The same for rows that are all of one version, on PostgreSQL: it sorts the ids and walks the index once, where a join
/// starts a scan for each of them.
pub(super) const ALIKE: &str = "t.id = ANY(?) AND t.version = ?";

/// The values of [`ALIKE`], unless the versions differ.
pub(super) fn alike<'q>(rows: impl Iterator<Item = (TaskId, i32)> + Clone) -> Option<[Value<'q>; 2]> {
    let (_, version) = rows.clone().next()?;
    let ids = rows.map(|(id, v)| (v == version).then(|| Some(id.as_i64())));
    Some([Value::Ints(ids.collect::<Option<_>>()?), version.into()])
}

/// `JOIN table t ON` the listed rows, by primary key. MySQL is told so: given the choice it reads a small table whole,
/// and an UPDATE then waits for locks on rows that it does not want.
pub(super) fn joined(dialect: Dialect, table: impl Display) -> String {
    joined_on(dialect, table, SAME)
}

/// The same by another condition.
pub(super) fn joined_on(dialect: Dialect, table: impl Display, on: &str) -> String {
    match dialect {
        Dialect::MySql => format!("STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {on}"),
        Dialect::Postgres => format!("JOIN {table} t ON {on}"),
        Dialect::Sqlite => format!("CROSS JOIN {table} t ON {on}"), // keeps the order
    }
}

/// Locks what a query reads of `t`, and nothing else of it. MySQL takes no lock on a list, and MariaDB has no `OF`: it passes
/// over comments for MySQL 8.
pub(super) fn locked(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => "", // a transaction has the only writer
        Dialect::Postgres => "FOR UPDATE OF t",
        Dialect::MySql => "FOR UPDATE /*!80001 OF t */",
    }
}

fn json<'q>(rows: &[Vec<Value<'_>>]) -> Value<'q> {
    let cell = |value: &Value<'_>| match value {
        Value::Int(v) => v.map_or_else(|| "null".to_owned(), |v| v.to_string()),
        Value::Text(v) => serde_json::to_string(v).unwrap_or_default(),
        _ => "null".to_owned(), // no list has binary values
    };
    let row = |row: &Vec<Value<'_>>| format!("[{}]", row.iter().map(cell).collect::<Vec<_>>().join(","));
    Value::Text(Some(Cow::Owned(format!("[{}]", rows.iter().map(row).collect::<Vec<_>>().join(",")))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    enum Cell {
        Int(i64),
        Text(&'static str),
        Null,
        Broken,
    }

    /// A row of a plain task.
    fn cells() -> Vec<Cell> {
        let texts = ["method_name", "params_json", "history"];
        let cell = |name: &&str| match *name {
            "history" => Cell::Text("[not JSON"),
            "policy" => Cell::Text("{not JSON"),
            name if texts.contains(&name) => Cell::Text("7"),
            "max_attempts" => Cell::Int(3),
            name if name.starts_with("last_error") || name.ends_with("_by") && name != "locked_by" => Cell::Null,
            "max_retry_duration" | "deadline" | "first_failed_at" | "notified_at" | "origin_id" => Cell::Null,
            "task_key" | "business_type" | "business_id" | "traceparent" => Cell::Null,
            _ => Cell::Int(1),
        };
        COLUMNS.iter().skip(1).map(cell).collect()
    }

    struct Row(std::vec::IntoIter<Cell>);

    impl Cells for Row {
        type Text = &'static str;

        fn next_int(&mut self) -> Result<Option<i64>, String> {
            match self.0.next().unwrap() {
                Cell::Int(n) => Ok(Some(n)),
                Cell::Null => Ok(None),
                Cell::Text(text) => Err(text.into()),
                Cell::Broken => Err("bytes".into()),
            }
        }

        fn next_text(&mut self) -> Result<Option<&'static str>, String> {
            match self.0.next().unwrap() {
                Cell::Text(text) => Ok(Some(text)),
                Cell::Null => Ok(None),
                Cell::Int(_) | Cell::Broken => Err("bytes".into()),
            }
        }
    }

    fn decoded(column: &str, cell: Cell) -> Task {
        let mut cells = cells();
        cells[COLUMNS.iter().position(|name| *name == column).unwrap() - 1] = cell;
        decode_task(TaskId::from_i64(1), &mut Row(cells.into_iter()))
    }

    /// A policy and a history that cannot be read are left out: later versions may write others.
    #[test]
    fn a_row_that_redrive_writes_is_decoded() {
        let task = decoded("priority", Cell::Int(-9));
        assert_eq!((task.undecodable, task.priority, task.policy.max_attempts), (None, -9, Some(3)));
        assert_eq!((task.history.len(), task.stop), (0, StopRequest::Cancel));
    }

    #[test]
    fn a_value_that_redrive_never_writes_is_named_and_replaced() {
        let of = |column: &str, cell: Cell| decoded(column, cell).undecodable.unwrap_or_default();
        let columns =
            ["attempt_count", "crashes", "postponements", "max_attempts", "max_retry_duration", "dedup_for", "version"];
        for column in columns {
            assert_eq!(of(column, Cell::Int(-1)), format!("the row cannot be decoded: {column} holds -1"));
        }
        for (column, n) in
            [("priority", 40_000), ("lane", 1 << 40), ("version", i64::from(i32::MAX)), ("cancel_requested", 3)]
        {
            assert_eq!(of(column, Cell::Int(n)), format!("the row cannot be decoded: {column} holds {n}"));
        }
        for column in COLUMNS.iter().skip(1) {
            assert!(of(column, Cell::Broken).ends_with(&format!("{column} holds bytes")), "{column}");
        }
        for column in ["version", "status", "method_name", "params_json"] {
            assert!(of(column, Cell::Null).ends_with(&format!("{column} holds NULL")), "{column}");
        }
        let task = decoded("max_attempts", Cell::Int(-1));
        assert_eq!((task.policy.max_attempts, task.params.as_str()), (default_policy().max_attempts, "7"));
        assert_eq!(task.last_error.unwrap().message, task.undecodable.unwrap());
    }

    #[test]
    fn statements_come_in_few_sizes() {
        assert_eq!([1, 3, 64, 1000].map(|rows| statement_size(rows, 37)), [1, 2, 64, 512]);
        assert!(statement_size(100_000, 100) * 100 <= 32_766);
    }
}
